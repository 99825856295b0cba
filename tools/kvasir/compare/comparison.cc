// See comparison.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/compare/comparison.h"

#include <algorithm>
#include <cmath>

#include "core/serving/scheduler.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/divergence.h"
#include "tools/kvasir/session/shared_prompt.h"

namespace kvasir::tool {
namespace {

// The tokens that all strategies are fed, and dense attention's logits after each.
struct Baseline {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [steps, vocab]
  std::span<const float> at(uint32_t step, uint32_t vocab) const {
    return {logits.data() + uint64_t{step} * vocab, vocab};
  }
};

// A prediction beside dense attention's of the same step.
struct Step {
  bool agrees;
  double kl;
};

// Strategies of one engine, dense first, masks last. Prompts are read together where that is
// possible; tokens are decoded one strategy at a time, so that each has the machine to itself.
class Comparer {
 public:
  Comparer(Session& session, const std::vector<Arm>& arms, const std::vector<TokenId>& prompt,
           uint32_t n_steps, const std::vector<TokenId>& fed, bool with_masks)
      : prompt_(prompt),
        n_steps_(n_steps),
        vocab_(session.shape().vocab_size),
        n_compared_(arms.size() + 1),
        engine_(session.load(static_cast<uint32_t>(prompt.size()) + n_steps,
                             static_cast<uint32_t>(n_compared_ + (with_masks ? arms.size() : 0)))),
        scheduler_(engine_, {.memory_bytes = session.sequence_memory(), .restores = true}),
        feeds_text_(!fed.empty()),
        baseline_{fed, {}} {
    runs_.resize(n_compared_);
    runs_[0].label = "dense";
    std::vector<const StrategyConfig*> strategies;
    for (size_t i = 0; i < arms.size(); ++i) {
      engine_.add_strategy(session.pipeline(arms[i].strategy));
      runs_[i + 1].label = arms[i].label;
      strategies.push_back(&arms[i].strategy);
    }
    if (!with_masks) return;
    masks_ = add_masks(engine_, session, strategies);
    runs_.resize(masks_.n_strategies);
    for (StrategyId s = 1; s < n_compared_; ++s)
      if (masks_.of[s]) runs_[masks_.of[s]].label = runs_[s].label + ", masked";
  }

  std::vector<ComparedStrategy> run() {
    uint32_t n_done = 0;
    for (const std::vector<StrategyId>& group :
         prompt_groups(engine_, static_cast<uint32_t>(runs_.size()))) {
      const std::string label = runs_[group[0]].label + ": prefill";
      std::vector<ReadPrompt> read = read_prompt(scheduler_, group, prompt_, n_steps_, label);
      for (size_t i = 0; i < group.size(); ++i) runs_[group[i]].prompt = std::move(read[i]);
      for (const StrategyId strategy : group) {
        decode(strategy);
        report_progress(to_line(runs_[strategy].result) +
                        format("  (%u of %zu)", ++n_done, runs_.size()));
      }
    }
    std::vector<ComparedStrategy> results;
    for (StrategyId s = 0; s < n_compared_; ++s) {
      if (!masks_.of.empty() && masks_.of[s])
        runs_[s].result.masked = against_mask(runs_[s], runs_[masks_.of[s]]);
      results.push_back(std::move(runs_[s].result));
    }
    return results;
  }

 private:
  struct Run {
    std::string label;
    ReadPrompt prompt;
    std::vector<Step> steps;  // none of dense attention
    double nll = 0;           // of the fed tokens, but the first
    ComparedStrategy result;
  };

  void decode(StrategyId strategy);
  std::optional<TokenId> next(StrategyId strategy, uint32_t step, std::span<const float> logits);
  ComparedStrategy result(StrategyId strategy);
  static ComparedStrategy::Masked against_mask(const Run& run, const Run& mask);

  const std::vector<TokenId>& prompt_;
  uint32_t n_steps_, vocab_;
  size_t n_compared_;  // dense attention and the arms
  Engine& engine_;
  Scheduler scheduler_;
  std::vector<Run> runs_;  // by strategy of the engine
  Masks masks_;
  bool feeds_text_;
  Baseline baseline_;
};

void Comparer::decode(StrategyId strategy) {
  Run& run = runs_[strategy];
  ProgressBar bar(run.label + ": decode");
  std::exception_ptr error;
  Request request;
  request.strategy = strategy;
  request.seq = run.prompt.seq;
  request.logits = run.prompt.logits;
  request.max_new_tokens = n_steps_;
  request.next = [&, step = uint32_t{0}](std::span<const float> logits) mutable {
    bar.update(step, n_steps_);
    return next(strategy, step++, logits);
  };
  request.on_end = [&error](const RequestStatus& status) { error = status.error; };
  scheduler_.submit(std::move(request));
  run_to_end(scheduler_, error);
  run.result = result(strategy);
}

// `logits` follow the prompt (step 0) or the token of the step before. Where no text gives the
// token dense attention, which comes first, chooses it.
std::optional<TokenId> Comparer::next(StrategyId strategy, uint32_t step,
                                      std::span<const float> logits) {
  if (strategy == 0 && step > 0)
    baseline_.logits.insert(baseline_.logits.end(), logits.begin(), logits.end());
  if (strategy != 0 && step > 0) {
    const auto dense = baseline_.at(step - 1, vocab_);
    runs_[strategy].steps.push_back(
        {most_likely(logits) == most_likely(dense), kl_divergence(dense, logits)});
  }
  if (step == n_steps_) return std::nullopt;
  if (step > 0 && feeds_text_)
    runs_[strategy].nll += negative_log_likelihood(logits, baseline_.tokens[step]);
  if (step == baseline_.tokens.size()) baseline_.tokens.push_back(most_likely(logits));
  return baseline_.tokens[step];
}

ComparedStrategy Comparer::result(StrategyId strategy) {
  const Run& run = runs_[strategy];
  const StrategyId leader = run.prompt.read_by;
  const auto nanos = [&](StrategyId of) { return engine_.prefill_engagement(of).total_nanos; };
  RunFigures figures;
  figures.prompt_tokens = static_cast<uint32_t>(prompt_.size());
  figures.restored_prompt_tokens = run.prompt.restored_tokens;
  figures.generated_tokens = n_steps_;
  // The leader read the prompt. A follower takes that time and the time of its own plugins.
  figures.prefill_ms =
      static_cast<double>(nanos(strategy) + (leader == strategy ? 0 : nanos(leader))) / 1e6;
  figures.decode_ms = static_cast<double>(engine_.decode_engagement(strategy).total_nanos) / 1e6;
  ComparedStrategy out;
  out.run = run_report(engine_, figures, strategy);
  out.run.strategy = run.label;
  if (leader != strategy) out.prefill_shared_with = runs_[leader].label;
  if (feeds_text_ && n_steps_ > 1) out.perplexity = std::exp(run.nll / (n_steps_ - 1));
  if (strategy == 0) return out;
  uint32_t n_agreed = 0;
  double kl = 0, squares = 0;
  for (const Step& step : run.steps) {
    n_agreed += step.agrees;
    kl += step.kl;
    squares += step.kl * step.kl;
  }
  out.top1_agreement = static_cast<double>(n_agreed) / n_steps_;
  out.mean_kl = kl / n_steps_;
  const double variance = std::max(squares / n_steps_ - out.mean_kl * out.mean_kl, 0.0);
  if (n_steps_ > 1) out.mean_kl_error = std::sqrt(variance / (n_steps_ - 1));
  return out;
}

ComparedStrategy::Masked Comparer::against_mask(const Run& run, const Run& mask) {
  ComparedStrategy::Masked out;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    out.tokens.add(run.steps[i].agrees, mask.steps[i].agrees);
    out.kl.add(run.steps[i].kl, mask.steps[i].kl);
  }
  return out;
}

}  // namespace

Comparison compare_strategies(Session& session, const std::vector<Arm>& arms,
                              const std::vector<TokenId>& prompt, uint32_t n_steps,
                              const std::vector<TokenId>& fed, bool with_masks) {
  Comparison out;
  out.strategies = Comparer(session, arms, prompt, n_steps, fed, with_masks).run();
  out.fed_text = !fed.empty();
  out.setup = session.setup();
  out.prompt_tokens = prompt.size();
  out.decode_steps = n_steps;
  out.load_ms = session.load_ms();
  return out;
}

}  // namespace kvasir::tool
