// See blend_eval.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/task/blend_eval.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/task/statistics.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/divergence.h"
#include "tools/kvasir/task/verdict_text.h"

namespace kvasir::tool {
namespace {

using Logits = std::vector<std::vector<float>>;  // before each token of the answer

// A sample as a prompt of chunks.
BlendPrompt prompt_of(const Sample& sample, Blender& blender) {
  const std::span<const TokenId> ids(sample.tokens.ids);
  const auto part = [&](const Span& tokens) {
    return ids.subspan(tokens.begin, tokens.end - tokens.begin);
  };
  const auto own = [](std::span<const TokenId> tokens) {
    return std::vector<TokenId>(tokens.begin(), tokens.end());
  };
  BlendPrompt prompt;
  prompt.lead = own(ids.first(sample.chunk_tokens(0).begin));
  for (size_t i = 0; i < sample.chunks.size(); ++i)
    prompt.chunks.push_back(blender.chunks().add(part(sample.chunk_tokens(i))));
  prompt.question = own(part({sample.chunk_tokens(sample.chunks.size() - 1).end,
                              sample.token_span(sample.turns[0].answer).begin}));
  return prompt;
}

class BlendEvaluator {
 public:
  BlendEvaluator(Session& session, const std::vector<BlendArm>& arms, Engine& engine)
      : session_(session), arms_(arms), engine_(engine) {}

  void run(const std::vector<Sample>& samples, uint32_t length, std::vector<BlendCell>& out) {
    std::vector<BlendCell> cells(arms_.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      cells[i].task = samples[0].task;
      cells[i].length = length;
      cells[i].arm = arms_[i].label;
    }
    ProgressBar bar(std::string(name(samples[0].task)) + " " + std::to_string(length));
    uint64_t done = 0;
    for (const Sample& sample : samples) {
      Blender blender(engine_, session_.shape(), 0,
                      chunk_bos(session_.tokenizer(), session_.strategy().blend));
      const BlendPrompt prompt = prompt_of(sample, blender);
      Logits full;
      for (size_t i = 0; i < arms_.size(); ++i) {
        answer(sample, prompt, blender, arms_[i], full, cells[i]);
        bar.update(++done, samples.size() * arms_.size());
      }
    }
    out.insert(out.end(), cells.begin(), cells.end());
  }

 private:
  // K and V of chunks that were copied, as the storage has them; mode prefix shares them.
  double loaded_bytes(const Blended& blended) const {
    if (blended.report.loads.empty()) return 0;
    const uint32_t b = engine_.geometry().block_size;
    const uint32_t n_held = (engine_.kv_len(blended.seq) + b - 1) / b * b;
    return static_cast<double>(engine_.kv_bytes(blended.seq)) / n_held *
           blended.report.chunk_tokens;
  }

  void answer(const Sample& sample, const BlendPrompt& prompt, Blender& blender,
              const BlendArm& arm, Logits& full, BlendCell& cell) {
    std::vector<float> logits(session_.shape().vocab_size);
    const Blended blended =
        blender.blend(prompt, arm.config, sample.index, logits, stop_if_interrupted);
    AnswerJudge judge(session_.tokenizer(), sample,
                      sample.token_span(sample.turns[0].answer).begin);
    const bool is_control = full.empty();
    std::vector<double> kl;
    for (size_t i = 0;; ++i) {
      if (is_control) full.push_back(logits);
      kl.push_back(kl_divergence(full[i], logits));
      const auto next = judge.next(logits);
      if (!next) break;
      const Engine::DecodeItem item{blended.seq, *next};
      engine_.decode({&item, 1}, logits);
    }
    cell.loaded_bytes.push_back(loaded_bytes(blended));
    engine_.close(blended.seq);
    cell.correct.push_back(judge.answer().correct);
    cell.ttft_seconds.push_back(blended.report.seconds());
    cell.recomputed_shares.push_back(blended.report.recomputed_share());
    cell.recomputed.push_back(blended.report.recomputed_share() * blended.report.chunk_tokens);
    cell.kl.push_back(std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size()));
    if (arm.config.mode == BlendMode::kAuto)
      cell.decided.push_back(std::string(name(blended.report.mode)) +
                             format(" %.3g", blended.report.ratio));
  }

  Session& session_;
  const std::vector<BlendArm>& arms_;
  Engine& engine_;
};

PairedCounts pairs_of(const BlendCell& first, const BlendCell& second) {
  PairedCounts out;
  for (size_t i = 0; i < first.correct.size(); ++i) out.add(first.correct[i], second.correct[i]);
  return out;
}

std::vector<PairedCounts> compared(const BlendEval& e) {
  std::vector<PairedCounts> out;
  for (size_t i = 0; i < e.cells.size(); ++i)
    if (i % e.n_arms) out.push_back(pairs_of(e.control(i), e.cells[i]));
  return out;
}

}  // namespace

uint64_t BlendCell::n_correct() const {
  return static_cast<uint64_t>(std::count(correct.begin(), correct.end(), true));
}

BlendEval evaluate_blends(Session& session, const std::vector<BlendArm>& arms,
                          const BlendEvalOptions& options) {
  BlendEval out;
  out.strategy = session.strategy().name;
  out.options = options;
  out.n_arms = arms.size();
  PieceEncoder encoder(session.tokenizer());
  std::vector<TaskGenerator> generators;
  for (const uint32_t length : options.lengths)
    for (const Task task : options.tasks)
      generators.emplace_back(task, options.task, length, encoder);
  const uint32_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  session.take_steps_of(longest);
  Engine& engine = session.load(longest);
  const auto is_oracle = [](const BlendArm& arm) { return arm.config.mode == BlendMode::kOracle; };
  check_blend_memory(session, engine, longest, std::any_of(arms.begin(), arms.end(), is_oracle));
  out.setup = session.setup();
  BlendEvaluator evaluator(session, arms, engine);
  size_t at = 0;
  for (const uint32_t length : options.lengths)
    for (size_t task = 0; task < options.tasks.size(); ++task, ++at) {
      std::vector<Sample> samples;
      for (uint32_t i = 0; i < options.n_samples; ++i)
        samples.push_back(generators[at].make(options.seed, i));
      evaluator.run(samples, length, out.cells);
    }
  return out;
}

Json to_json(const BlendEval& e) {
  Json out = to_json(e.setup);
  out["strategy"] = e.strategy;
  out["seed"] = e.options.seed;
  out["samples"] = e.options.n_samples;
  out["cells"] = Json::array();
  for (size_t i = 0; i < e.cells.size(); ++i) {
    const BlendCell& cell = e.cells[i];
    const Interval interval = wilson_interval(cell.n_correct(), cell.correct.size());
    const PairedCounts pairs = pairs_of(e.control(i), cell);
    out["cells"].push_back({{"task", name(cell.task)},
                            {"length", cell.length},
                            {"arm", cell.arm},
                            {"samples", cell.correct.size()},
                            {"right", cell.n_correct()},
                            {"interval", {interval.low, interval.high}},
                            {"lost", pairs.n_lost},
                            {"won", pairs.n_won},
                            {"recomputed_tokens", mean(cell.recomputed)},
                            {"recomputed_share", mean(cell.recomputed_shares)},
                            {"loaded_bytes", mean(cell.loaded_bytes)},
                            {"ttft_ms", 1e3 * mean(cell.ttft_seconds)},
                            {"kl_to_full", mean(cell.kl)},
                            {"decided", cell.decided}});
  }
  return out;
}

std::string to_text(const BlendEval& e) {
  Table table({"task", "length", "arm", "right", "accuracy", "95 % interval", "lost", "won",
               "against full", "computed", "share", "MB reused", "TTFT ms", "x full", "KL to full"},
              {1, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14});
  const std::vector<PairedCounts> pairs = compared(e);
  const std::vector<Judgement> judged = judge(pairs, 0);
  std::vector<Verdict> verdicts;
  for (size_t i = 0, next = 0; i < e.cells.size(); ++i) {
    const BlendCell& cell = e.cells[i];
    const bool is_control = i % e.n_arms == 0;
    const Interval interval = wilson_interval(cell.n_correct(), cell.correct.size());
    const double n = static_cast<double>(std::max<size_t>(cell.correct.size(), 1));
    std::string against;
    PairedCounts own;
    if (!is_control) {
      own = pairs[next];
      against = verdict_text(own, judged[next].verdict, judged[next].p, pairs.size());
      verdicts.push_back(judged[next++].verdict);
    }
    table.add(
        {name(cell.task), std::to_string(cell.length), cell.arm,
         format("%llu/%zu", static_cast<unsigned long long>(cell.n_correct()), cell.correct.size()),
         format("%.1f %%", 100 * static_cast<double>(cell.n_correct()) / n),
         format("%.1f - %.1f %%", 100 * interval.low, 100 * interval.high),
         is_control ? "" : std::to_string(own.n_lost), is_control ? "" : std::to_string(own.n_won),
         against, format("%.0f", mean(cell.recomputed)),
         format("%.1f %%", 100 * mean(cell.recomputed_shares)),
         format("%.2f", 1e-6 * mean(cell.loaded_bytes)),
         format("%.1f", 1e3 * mean(cell.ttft_seconds)),
         format("%.2f", mean(e.control(i).ttft_seconds) / mean(cell.ttft_seconds)),
         format("%.5f", mean(cell.kl))});
  }
  return table.text() +
         "\ncomputed: tokens of chunks that a layer takes through attention and feed-forward, mean "
         "of the layers; share: of all tokens of chunks; MB: K and V that were reused.\nTTFT: "
         "placing and computing chunks, then "
         "the question; chunks were read before. KL: mean over the answer's tokens, in nats."
         "\nAgainst full: exact McNemar test, p after Holm over all comparisons." +
         verdict_notes(verdicts, 0) + "\n";
}

}  // namespace kvasir::tool
