// See comparison.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/compare/comparison.h"

#include <algorithm>
#include <cmath>

#include "core/serving/scheduler.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

TokenId argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log sum exp, in double.
double log_sum(std::span<const float> logits) {
  const double high = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - high);
  return high + std::log(sum);
}

// KL(p || q) = sum_i p_i (log p_i - log q_i) of the two softmaxes, in nats.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double zp = log_sum(p), zq = log_sum(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - zp;
    sum += std::exp(log_p) * (log_p - (q[i] - zq));
  }
  return std::max(sum, 0.0);
}

// Dense attention's tokens, which all strategies are fed, and its logits after each.
struct Baseline {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [steps, vocab]
  std::span<const float> at(uint32_t step, uint32_t vocab) const {
    return {logits.data() + uint64_t{step} * vocab, vocab};
  }
};

// Strategies of one engine, dense first. Prompts are read together where that is possible; tokens
// are decoded one strategy at a time, so that each has the machine to itself.
class Comparer {
 public:
  Comparer(Session& session, const std::vector<Arm>& arms, const std::vector<TokenId>& prompt,
           uint32_t n_steps)
      : prompt_(prompt),
        n_steps_(n_steps),
        vocab_(session.shape().vocab_size),
        engine_(session.load(static_cast<uint32_t>(prompt.size()) + n_steps,
                             static_cast<uint32_t>(arms.size() + 1))),
        scheduler_(engine_, {.memory_bytes = session.sequence_memory()}) {
    runs_.resize(arms.size() + 1);
    runs_[0].label = "dense";
    for (size_t i = 0; i < arms.size(); ++i) {
      engine_.add_strategy(session.pipeline(arms[i].strategy));
      runs_[i + 1].label = arms[i].label;
    }
  }

  std::vector<ComparedStrategy> run() {
    uint32_t n_done = 0;
    for (StrategyId leader = 0; leader < runs_.size(); ++leader) {
      if (!runs_[leader].logits.empty()) continue;
      std::vector<StrategyId> together{leader};
      for (StrategyId other = leader + 1; other < runs_.size(); ++other)
        if (runs_[other].logits.empty() && engine_.can_follow(leader, other))
          together.push_back(other);
      read_prompt(together);
      for (const StrategyId strategy : together) {
        decode(strategy);
        report_progress(to_line(runs_[strategy].result) +
                        format("  (%u of %zu)", ++n_done, runs_.size()));
      }
    }
    std::vector<ComparedStrategy> results;
    for (Run& run : runs_) results.push_back(std::move(run.result));
    return results;
  }

 private:
  struct Run {
    std::string label;
    SequenceId seq = 0;
    std::vector<float> logits;  // of the prompt's last token
    RequestId request = 0, read_by = 0;
    ComparedStrategy result;
  };

  void read_prompt(const std::vector<StrategyId>& together);
  void decode(StrategyId strategy);
  std::optional<TokenId> next(StrategyId strategy, uint32_t step, std::span<const float> logits);
  ComparedStrategy result(StrategyId strategy);
  void finish(const std::exception_ptr& error) {
    scheduler_.run();
    if (error) std::rethrow_exception(error);
    if (scheduler_.n_queued() + scheduler_.n_running() > 0)
      throw Error(ErrorKind::kInternal, "the scheduler has nothing to do, but a request is left");
  }

  const std::vector<TokenId>& prompt_;
  uint32_t n_steps_, vocab_;
  Engine& engine_;
  Scheduler scheduler_;
  std::vector<Run> runs_;
  Baseline baseline_;
  uint32_t agreed_ = 0;
  double kl_ = 0;
};

void Comparer::read_prompt(const std::vector<StrategyId>& together) {
  ProgressBar bar(runs_[together[0]].label + ": prefill");
  std::vector<Request> requests(together.size());
  std::exception_ptr error;
  for (size_t i = 0; i < together.size(); ++i) {
    Run& run = runs_[together[i]];
    requests[i].strategy = together[i];
    requests[i].max_new_tokens = n_steps_;
    requests[i].keep = true;
    requests[i].on_prompt_end = [&run](std::span<const float> logits) {
      run.logits.assign(logits.begin(), logits.end());
    };
    requests[i].on_end = [&run, &error](const RequestStatus& status) {
      run.seq = status.seq;
      run.read_by = status.prompt_read_by;
      if (status.error) error = status.error;
    };
  }
  requests[0].prompt = prompt_;
  requests[0].on_progress = [&](uint32_t done, uint32_t total) { bar.update(done, total); };
  const std::vector<RequestId> ids = scheduler_.submit_together(std::move(requests));
  for (size_t i = 0; i < together.size(); ++i) runs_[together[i]].request = ids[i];
  finish(error);
}

void Comparer::decode(StrategyId strategy) {
  Run& run = runs_[strategy];
  ProgressBar bar(run.label + ": decode");
  agreed_ = 0;
  kl_ = 0;
  std::exception_ptr error;
  Request request;
  request.strategy = strategy;
  request.seq = run.seq;
  request.logits = run.logits;
  request.max_new_tokens = n_steps_;
  request.next = [&, step = uint32_t{0}](std::span<const float> logits) mutable {
    bar.update(step, n_steps_);
    return next(strategy, step++, logits);
  };
  request.on_end = [&error](const RequestStatus& status) { error = status.error; };
  scheduler_.submit(std::move(request));
  finish(error);
  run.result = result(strategy);
}

// `logits` follow the prompt (step 0) or the token of the step before. Dense attention chooses the
// token; another strategy is fed the same one, and its own prediction is compared.
std::optional<TokenId> Comparer::next(StrategyId strategy, uint32_t step,
                                      std::span<const float> logits) {
  if (strategy == 0 && step > 0)
    baseline_.logits.insert(baseline_.logits.end(), logits.begin(), logits.end());
  if (strategy != 0 && step > 0) {
    const auto dense = baseline_.at(step - 1, vocab_);
    agreed_ += argmax(logits) == argmax(dense);
    kl_ += kl_divergence(dense, logits);
  }
  if (step == n_steps_) return std::nullopt;
  return strategy == 0 ? baseline_.tokens.emplace_back(argmax(logits)) : baseline_.tokens[step];
}

ComparedStrategy Comparer::result(StrategyId strategy) {
  const Run& run = runs_[strategy];
  const Run* leader = &run;
  for (const Run& other : runs_)
    if (other.request == run.read_by) leader = &other;
  const auto nanos = [&](const Run& of) {
    return engine_.prefill_engagement(static_cast<StrategyId>(&of - runs_.data())).total_nanos;
  };
  RunFigures figures;
  figures.prompt_tokens = static_cast<uint32_t>(prompt_.size());
  figures.generated_tokens = n_steps_;
  // The leader read the prompt. A follower takes that time and the time of its own plugins.
  figures.prefill_ms =
      static_cast<double>(nanos(run) + (leader == &run ? 0 : nanos(*leader))) / 1e6;
  figures.decode_ms = static_cast<double>(engine_.decode_engagement(strategy).total_nanos) / 1e6;
  ComparedStrategy out;
  out.run = run_report(engine_, figures, strategy);
  out.run.strategy = run.label;
  if (leader != &run) out.prefill_shared_with = leader->label;
  if (strategy == 0) return out;
  out.top1_agreement = static_cast<double>(agreed_) / n_steps_;
  out.mean_kl = kl_ / n_steps_;
  return out;
}

}  // namespace

Comparison compare_strategies(Session& session, const std::vector<Arm>& arms,
                              const std::vector<TokenId>& prompt, uint32_t n_steps) {
  Comparison out;
  out.strategies = Comparer(session, arms, prompt, n_steps).run();
  out.setup = session.setup();
  out.prompt_tokens = prompt.size();
  out.decode_steps = n_steps;
  out.load_ms = session.load_ms();
  return out;
}

}  // namespace kvasir::tool
