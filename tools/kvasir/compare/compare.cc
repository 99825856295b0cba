// kvasir compare: the same prompt and the same tokens through several strategies. Dense attention
// generates greedily; every strategy then is fed those tokens and judged by its own predictions.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/serving/scheduler.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

struct CompareOptions {
  std::vector<std::string> strategies;
  std::optional<std::string> prompt, file;
  uint32_t n_predict = 64;
};

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

// What dense attention said: the tokens that all strategies are fed, and its logits after each.
struct Baseline {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [steps, vocab]
  std::span<const float> at(uint32_t step, uint32_t vocab) const {
    return {logits.data() + uint64_t{step} * vocab, vocab};
  }
};

// Strategies of one engine, dense first. Prompts are read together where that is possible; tokens
// are decoded one strategy at a time, so that each has the machine to itself.
class Comparison {
 public:
  Comparison(Session& session, const std::vector<Arm>& arms, std::vector<TokenId> prompt,
             uint32_t n_steps, bool show)
      : session_(session),
        prompt_(std::move(prompt)),
        n_steps_(n_steps),
        show_(show),
        engine_(session.load(static_cast<uint32_t>(prompt_.size()) + n_steps,
                             static_cast<uint32_t>(arms.size() + 1))),
        scheduler_(engine_, {.memory_bytes = session.sequence_memory()}) {
    runs_.resize(arms.size() + 1);
    runs_[0].label = "dense";
    for (size_t i = 0; i < arms.size(); ++i) {
      engine_.add_strategy(session.pipeline(arms[i].strategy));
      runs_[i + 1].label = arms[i].label;
    }
  }

  Json run() {
    Json out = Json::array();
    for (StrategyId leader = 0; leader < runs_.size(); ++leader) {
      if (!runs_[leader].logits.empty()) continue;
      std::vector<StrategyId> together{leader};
      for (StrategyId other = leader + 1; other < runs_.size(); ++other)
        if (runs_[other].logits.empty() && engine_.can_follow(leader, other))
          together.push_back(other);
      read_prompt(together);
      for (const StrategyId strategy : together) decode(strategy);
    }
    for (const Run& run : runs_) out.push_back(run.report);
    return out;
  }

 private:
  struct Run {
    std::string label;
    SequenceId seq = 0;
    std::vector<float> logits;  // of the prompt's last token
    RequestId request = 0, read_by = 0;
    Json report;
  };

  void read_prompt(const std::vector<StrategyId>& together);
  void decode(StrategyId strategy);
  std::optional<TokenId> next(StrategyId strategy, uint32_t step, std::span<const float> logits);
  Json report(StrategyId strategy) const;
  void finish(const std::exception_ptr& error) {
    scheduler_.run();
    if (error) std::rethrow_exception(error);
  }

  Session& session_;
  std::vector<TokenId> prompt_;
  uint32_t n_steps_;
  bool show_;
  Engine& engine_;
  Scheduler scheduler_;
  std::vector<Run> runs_;
  Baseline baseline_;
  uint32_t agreed_ = 0;
  double kl_ = 0;
};

void Comparison::read_prompt(const std::vector<StrategyId>& together) {
  ProgressBar bar(runs_[together[0]].label + ": prefill", show_);
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

void Comparison::decode(StrategyId strategy) {
  Run& run = runs_[strategy];
  ProgressBar bar(run.label + ": decode", show_);
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
  run.report = report(strategy);
}

// `logits` follow the prompt (step 0) or the token of the step before; dense attention chooses the
// tokens, the others are fed them and judged by their own predictions.
std::optional<TokenId> Comparison::next(StrategyId strategy, uint32_t step,
                                        std::span<const float> logits) {
  const uint32_t vocab = session_.shape().vocab_size;
  if (strategy == 0 && step > 0)
    baseline_.logits.insert(baseline_.logits.end(), logits.begin(), logits.end());
  if (strategy != 0 && step > 0) {
    const auto dense = baseline_.at(step - 1, vocab);
    agreed_ += argmax(logits) == argmax(dense);
    kl_ += kl_divergence(dense, logits);
  }
  if (step == n_steps_) return std::nullopt;
  return strategy == 0 ? baseline_.tokens.emplace_back(argmax(logits)) : baseline_.tokens[step];
}

Json Comparison::report(StrategyId strategy) const {
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
  // The pass over the prompt is its leader's; the others add what their own plugins took.
  figures.prefill_ms =
      static_cast<double>(nanos(run) + (leader == &run ? 0 : nanos(*leader))) / 1e6;
  figures.decode_ms = static_cast<double>(engine_.decode_engagement(strategy).total_nanos) / 1e6;
  Json out = to_json(engine_, figures, strategy);
  out["strategy"] = run.label;
  out["prefill_shared_with"] = leader == &run ? Json() : Json(leader->label);
  out["top1_agreement"] = strategy == 0 ? 1.0 : static_cast<double>(agreed_) / n_steps_;
  out["mean_kl"] = strategy == 0 ? 0.0 : kl_ / n_steps_;
  return out;
}

void print_text(const Json& report) {
  std::printf("%u prompt tokens, then %u tokens decoded from the same inputs; %s, %u threads\n\n",
              report["prompt_tokens"].get<uint32_t>(), report["decode_steps"].get<uint32_t>(),
              report["compute"].get<std::string>().c_str(), report["threads"].get<uint32_t>());
  Table table({"strategy", "prefill tok/s", "decode tok/s", "K+V MB/token", "to choose MB/token",
               "attended", "same top-1", "KL to dense", "fallbacks"},
              {1, 2, 3, 4, 5, 6, 7, 8});
  for (const Json& r : report["strategies"]) {
    const auto number = [&](const char* key) { return r[key].get<double>(); };
    const double steps = std::max(1.0, number("steps"));
    table.add(
        {r["strategy"], format("%.1f", number("prefill_tokens_per_second")),
         format("%.2f", number("decode_tokens_per_second")),
         format("%.3f", number("kv_bytes_read") / steps / 1e6),
         format("%.3f", (number("representative_bytes_read") + number("selector_bytes_read")) /
                            steps / 1e6),
         format("%.1f %%",
                100.0 * number("tokens_attended") / std::max(1.0, number("tokens_considered"))),
         format("%.1f %%", 100.0 * number("top1_agreement")), format("%.5f", number("mean_kl")),
         r["fallbacks"].dump()});
  }
  std::fputs(table.text().c_str(), stdout);
  std::vector<std::string> shared;
  for (const Json& r : report["strategies"])
    if (!r["prefill_shared_with"].is_null())
      shared.push_back(r["strategy"].get<std::string>() + " with " +
                       r["prefill_shared_with"].get<std::string>());
  if (shared.empty()) return;
  std::printf(
      "\nPrompts read together: %s. Their prefill speed counts the shared pass and what their "
      "own plugins took.\n",
      join(shared, ", ").c_str());
}

void compare(Options options, const CompareOptions& o) {
  if (o.prompt.has_value() == o.file.has_value())
    throw input_error("give one of -p TEXT and -f FILE");
  if (o.strategies.empty()) throw input_error("give at least one -s STRATEGY");
  if (o.n_predict == 0) throw input_error("-n must be above 0");
  const std::string text = o.file ? read_file(*o.file, "-f") : *o.prompt;
  const std::vector<Arm> arms = resolve_arms(options, o.strategies);
  Session session(options);
  const std::vector<TokenId> prompt = session.tokenizer().encode(text, {});
  if (prompt.empty()) throw input_error("the prompt is empty");
  const uint64_t context = prompt.size() + o.n_predict;
  if (options.ctx_size && context > options.ctx_size)
    throw input_error("prompt and -n are " + std::to_string(context) + " tokens, but -c gives " +
                      std::to_string(options.ctx_size) + ": raise -c or shorten the prompt");
  Comparison comparison(session, arms, prompt, o.n_predict, !options.json);
  Json report{{"model", options.model},
              {"compute", session.compute() == Compute::kBF16 ? "bf16" : "f32"},
              {"deterministic", session.deterministic()},
              {"threads", session.pool().n_workers()},
              {"prompt_tokens", prompt.size()},
              {"decode_steps", o.n_predict},
              {"load_ms", session.load_ms()}};
  report["strategies"] = comparison.run();
  if (options.json) return print_json(report);
  print_text(report);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto* c = app.add_subcommand("compare", "The same tokens through several strategies");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<CompareOptions>();
  add_model_flags(*c, *options);
  add_arm_flags(*c, *options, o->strategies);
  c->add_option("-p,--prompt", o->prompt, "Prompt text");
  c->add_option("-f,--file", o->file, "Prompt from a file");
  c->add_option("-n,--n-predict", o->n_predict, "Decode steps to compare");
  c->add_flag("--json", options->json, "One JSON document on stdout, nothing else there");
  c->callback([=] { compare(*options, *o); });
}

}  // namespace kvasir::tool
