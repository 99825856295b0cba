// kvasir compare: the same prompt and the same tokens through several strategies. Dense attention
// generates greedily; every strategy then is fed those tokens and judged by its own predictions.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "tools/kvasir/arms.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/report.h"
#include "tools/kvasir/session.h"
#include "tools/kvasir/text.h"

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

// One run: prefill, then n decode steps. `next` gives the token to feed from the last logits, and
// `seen` gets the logits of each step.
struct Replay {
  std::function<TokenId(uint32_t step, std::span<const float> logits)> next;
  std::function<void(uint32_t step, std::span<const float> logits)> seen;
};
Json replay(Engine& engine, const std::string& label, const std::vector<TokenId>& prompt,
            uint32_t n_steps, uint32_t vocab, bool show, const Replay& use) {
  const SequenceId seq = engine.open();
  std::vector<float> logits(vocab);
  RunFigures figures;
  figures.prompt_tokens = static_cast<uint32_t>(prompt.size());
  figures.generated_tokens = n_steps;
  {
    ProgressBar bar(label + ": prefill", show);
    engine.prefill(seq, prompt, logits,
                   {.progress =
                        [&](uint32_t done, uint32_t total) {
                          bar.update(done, total);
                          return true;
                        },
                    .all_logits = {}});
  }
  ProgressBar bar(label + ": decode", show);
  for (uint32_t step = 0; step < n_steps; ++step) {
    const Engine::DecodeItem item{seq, use.next(step, logits)};
    engine.decode({&item, 1}, logits);
    use.seen(step, logits);
    bar.update(step + 1, n_steps);
  }
  figures.prefill_ms = static_cast<double>(engine.prefill_engagement().total_nanos) / 1e6;
  figures.decode_ms = static_cast<double>(engine.decode_engagement().total_nanos) / 1e6;
  engine.close(seq);
  Json out = to_json(engine, figures);
  out["strategy"] = label;
  return out;
}

// What dense attention said: the tokens that all strategies are fed, and its logits after each.
struct Baseline {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [steps, vocab]
  std::span<const float> at(uint32_t step, uint32_t vocab) const {
    return {logits.data() + uint64_t{step} * vocab, vocab};
  }
};

Json run_dense(Session& session, Engine& engine, const std::vector<TokenId>& prompt, uint32_t n,
               bool show, Baseline& baseline) {
  const uint32_t vocab = session.shape().vocab_size;
  baseline.logits.reserve(uint64_t{n} * vocab);
  Json out =
      replay(engine, "dense", prompt, n, vocab, show,
             {.next =
                  [&](uint32_t, std::span<const float> logits) {
                    return baseline.tokens.emplace_back(argmax(logits));
                  },
              .seen =
                  [&](uint32_t, std::span<const float> logits) {
                    baseline.logits.insert(baseline.logits.end(), logits.begin(), logits.end());
                  }});
  out["top1_agreement"] = 1.0;
  out["mean_kl"] = 0.0;
  return out;
}

Json run_strategy(Session& session, const StrategyConfig& strategy, const std::string& label,
                  const std::vector<TokenId>& prompt, uint32_t n, bool show,
                  const Baseline& baseline) {
  const uint32_t vocab = session.shape().vocab_size;
  const auto context = static_cast<uint32_t>(prompt.size()) + n;
  const auto engine = session.make_engine(strategy, context);
  uint32_t agreed = 0;
  double kl = 0;
  Json out =
      replay(*engine, label, prompt, n, vocab, show,
             {.next = [&](uint32_t step, std::span<const float>) { return baseline.tokens[step]; },
              .seen =
                  [&](uint32_t step, std::span<const float> logits) {
                    const auto dense = baseline.at(step, vocab);
                    agreed += argmax(logits) == argmax(dense);
                    kl += kl_divergence(dense, logits);
                  }});
  out["top1_agreement"] = static_cast<double>(agreed) / n;
  out["mean_kl"] = kl / n;
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
  Engine& dense = session.load(static_cast<uint32_t>(context));
  Json report{{"model", options.model},
              {"compute", session.compute() == Compute::kBF16 ? "bf16" : "f32"},
              {"deterministic", session.deterministic()},
              {"threads", session.pool().n_workers()},
              {"prompt_tokens", prompt.size()},
              {"decode_steps", o.n_predict},
              {"load_ms", session.load_ms()},
              {"strategies", Json::array()}};
  Baseline baseline;
  report["strategies"].push_back(
      run_dense(session, dense, prompt, o.n_predict, !options.json, baseline));
  for (const Arm& arm : arms)
    report["strategies"].push_back(run_strategy(session, arm.strategy, arm.label, prompt,
                                                o.n_predict, !options.json, baseline));
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
