// See blend_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/blend_bench.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/blend/deviation.h"
#include "core/error.h"
#include "core/task/prose.h"
#include "core/task/statistics.h"
#include "tools/kvasir/bench/attention_watch.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/divergence.h"

namespace kvasir::tool {
namespace {

// Tokens of chunks and question, one after the other.
std::vector<TokenId> text_tokens(const Tokenizer& tokenizer, const BlendBenchOptions& o,
                                 uint32_t n) {
  std::string text;
  if (!o.file.empty()) {
    text = read_file(o.file, "-f").substr(0, size_t{n} * 16);
  } else {
    TaskRandom random(o.seed);
    for (uint32_t i = 0; i < n; i += 4) text += prose_sentence(random) + " ";  // 4 tokens at least
  }
  std::vector<TokenId> tokens = tokenizer.encode(text, {.add_bos = false, .parse_special = false});
  if (tokens.size() < n)
    throw input_error("-f " + o.file + " has " + std::to_string(tokens.size()) + " tokens, " +
                      std::to_string(n) + " are needed: give a longer text or fewer chunks");
  tokens.resize(n);
  return tokens;
}

class Measurement {
 public:
  Measurement(Session& session, const BlendBenchOptions& o, std::vector<TokenId> text,
              Engine& engine, const QueryTap& tap)
      : session_(session),
        o_(o),
        text_(std::move(text)),
        engine_(engine),
        watch_(engine, tap),
        blender_(engine, session.shape(), 0,
                 chunk_bos(session.tokenizer(), session.strategy().blend)) {
    const std::span<const TokenId> all(text_);
    if (const auto bos = leading_bos(session.tokenizer())) prompt_.lead = {*bos};
    for (uint32_t i = 0; i < o.n_chunks; ++i) {
      stop_if_interrupted();
      prompt_.chunks.push_back(
          blender_.chunks().add(all.subspan(size_t{i} * o.chunk_tokens, o.chunk_tokens)));
    }
    question_ = {all.end() - o.question_tokens, all.end()};
    prompt_.question = {question_[0]};
  }

  void deviations(BlendBench& out) {
    std::vector<TokenId> context = prompt_.lead;
    context.insert(context.end(), text_.begin(), text_.end() - o_.question_tokens);
    const SequenceId full = engine_.open();
    engine_.prefill(full, context, {});
    const SequenceId reused = blender_.place(prompt_, BlendMode::kReuse, stop_if_interrupted);
    const auto all = blender_.deviations(prompt_, reused, full);
    engine_.close(full);
    engine_.close(reused);
    std::vector<std::span<const double>> behind;  // the first chunk
    for (const auto& layer : all) behind.push_back(std::span(layer).subspan(o_.chunk_tokens));
    for (const auto& layer : behind) out.of_layer.push_back(mean(layer));
    for (size_t i = 1; i + 1 < behind.size(); ++i)
      out.rank_correlation.push_back(rank_correlation(behind[i], behind[i + 1]));
    for (uint32_t chunk = 0; chunk < o_.n_chunks; ++chunk) {
      std::vector<double> of_layers;
      for (size_t layer = 1; layer < all.size(); ++layer)
        of_layers.push_back(
            mean(std::span(all[layer]).subspan(size_t{chunk} * o_.chunk_tokens, o_.chunk_tokens)));
      out.of_chunk.push_back(mean(of_layers));
    }
  }

  // Of a store, if there is one, then of wherever the process keeps what came from it.
  void loading(BlendBench& out) {
    out.n_loads = o_.n_loads;
    out.loading_ratio = o_.loading.ratio;
    if (o_.n_loads == 0) return;
    if (engine_.pipeline().storage->has_store()) load(true, out);
    load(false, out);
  }

  BlendBench::Arm arm(const BlendArm& arm) {
    std::vector<float> logits(session_.shape().vocab_size);
    const Blended blended =
        blender_.blend(prompt_, arm.config, o_.seed, logits, stop_if_interrupted);
    BlendBench::Arm out{arm.label, blended.report.recomputed_share(), 0, blended.report.seconds(),
                        0};
    const bool is_control = full_.empty();
    for (size_t i = 0;; ++i) {
      if (is_control) full_.push_back(logits);
      out.kl += kl_divergence(full_[i], logits) / static_cast<double>(question_.size());
      if (i + 1 == question_.size()) break;
      const Engine::DecodeItem item{blended.seq, question_[i + 1]};
      engine_.decode({&item, 1}, logits);
      if (watch_.can_watch()) watch_.saw(blended.seq);
      stop_if_interrupted();
    }
    if (watch_.can_watch() && question_.size() > 1) {
      auto rows = watch_.rows(blended.seq);
      if (is_control)
        full_rows_ = std::move(rows);
      else
        out.attention = attention_deviation(rows, full_rows_, session_.shape().n_q_heads,
                                            static_cast<uint32_t>(question_.size() - 1));
    }
    engine_.close(blended.seq);
    return out;
  }

 private:
  struct Loads {
    std::vector<double> load, wait, overlap, ttft;
  };

  // Both ways in turn, so that what else the machine does meets both.
  void load(bool from_store, BlendBench& out) {
    std::array<Loads, 2> of_way;  // when needed, ahead
    if (from_store)
      for (const ChunkId chunk : prompt_.chunks) wait_for_store(chunk);
    std::array<uint64_t, kChunkTiers> before = loaded();
    for (uint32_t i = 0; i < 2 * o_.n_loads; ++i) {
      stop_if_interrupted();
      const bool ahead = (i % 2 == 0) == (i % 4 < 2);
      if (from_store)
        for (const ChunkId chunk : prompt_.chunks) blender_.chunks().let_go(chunk);
      if (i == 0) before = loaded();
      BlendConfig config = o_.loading;
      config.load_ahead = ahead;
      std::vector<float> logits(session_.shape().vocab_size);
      const Blended blended = blender_.blend(prompt_, config, o_.seed, logits, stop_if_interrupted);
      engine_.close(blended.seq);
      Loads& loads = of_way[ahead];
      const BlendReport& report = blended.report;
      const auto n_layers = static_cast<double>(report.loads.size());
      loads.load.push_back(report.load_seconds() / n_layers);
      loads.wait.push_back(report.wait_seconds() / n_layers);
      loads.overlap.push_back(report.overlap_share());
      loads.ttft.push_back(report.seconds());
    }
    const std::array<uint64_t, kChunkTiers> after = loaded();
    uint32_t most = 0;  // where most tokens came from
    for (uint32_t tier = 1; tier < kChunkTiers; ++tier)
      if (after[tier] - before[tier] > after[most] - before[most]) most = tier;
    for (const bool ahead : {true, false}) {
      const Loads& loads = of_way[ahead];
      out.loading.push_back({static_cast<ChunkTier>(most), ahead, spread_of(loads.load).median,
                             spread_of(loads.wait).median, spread_of(loads.overlap).median,
                             spread_of(loads.ttft).median});
    }
  }

  void wait_for_store(ChunkId chunk) {
    constexpr std::chrono::seconds kPatience{60};
    if (!blender_.chunks().is_kept_whole(chunk))
      throw input_error("--loads: a store keeps " + std::to_string(engine_.restore_unit()) +
                        " tokens at a time of what is computed so, and no whole chunk of " +
                        std::to_string(o_.chunk_tokens) +
                        ": in bf16 tokens round as the number of their step says; add "
                        "--deterministic");
    blender_.chunks().let_go(chunk);
    if (!blender_.chunks().bring(chunk, kPatience))
      throw Error(ErrorKind::kResource,
                  "the store did not take the chunks within a minute: see what the log says of it");
  }

  std::array<uint64_t, kChunkTiers> loaded() {
    std::array<uint64_t, kChunkTiers> out{};
    for (uint32_t tier = 0; tier < kChunkTiers; ++tier)
      out[tier] = blender_.chunks().loading(static_cast<ChunkTier>(tier)).layer_tokens();
    return out;
  }

  Session& session_;
  const BlendBenchOptions& o_;
  std::vector<TokenId> text_, question_;
  Engine& engine_;
  AttentionWatch watch_;
  Blender blender_;
  BlendPrompt prompt_;
  // Of the first arm: logits behind each question token, and what those attended to.
  std::vector<std::vector<float>> full_, full_rows_;
};

}  // namespace

BlendBench bench_blend(Session& session, const BlendBenchOptions& o) {
  const uint32_t n = o.n_chunks * o.chunk_tokens + o.question_tokens;
  std::vector<TokenId> text = text_tokens(session.tokenizer(), o, n);
  session.take_steps_of(n);
  const QueryTap* tap = nullptr;
  session.wrap_model([&](std::unique_ptr<Model> model) {
    auto made = std::make_unique<QueryTap>(std::move(model));
    tap = made.get();
    return made;
  });
  Engine& engine = session.load(n + 1);
  check_blend_memory(session, engine, n + 1, true);
  BlendBench out{session.setup(),
                 session.strategy().name,
                 o.n_chunks,
                 o.chunk_tokens,
                 o.question_tokens,
                 {},
                 {},
                 {},
                 {},
                 {}};
  Measurement measurement(session, o, std::move(text), engine, *tap);
  measurement.deviations(out);
  for (const BlendArm& arm : o.arms) out.arms.push_back(measurement.arm(arm));
  measurement.loading(out);
  return out;
}

Json to_json(const BlendBench& b) {
  Json out = to_json(b.setup);
  out["strategy"] = b.strategy;
  out["chunks"] = b.n_chunks;
  out["chunk_tokens"] = b.chunk_tokens;
  out["question_tokens"] = b.question_tokens;
  out["arms"] = Json::array();
  for (const BlendBench::Arm& arm : b.arms)
    out["arms"].push_back({{"arm", arm.label},
                           {"recomputed_share", arm.recomputed_share},
                           {"kl_to_full", arm.kl},
                           {"attention_deviation", arm.attention},
                           {"ttft_ms", 1e3 * arm.seconds}});
  out["deviation_of_layer"] = b.of_layer;
  out["rank_correlation_with_next_layer"] = b.rank_correlation;  // from layer 1 on
  out["deviation_of_chunk"] = b.of_chunk;
  out["loading"] = Json::array();
  for (const BlendBench::Loading& row : b.loading)
    out["loading"].push_back({{"tier", name(row.tier)},
                              {"ahead", row.ahead},
                              {"prompts", b.n_loads},
                              {"ratio", b.loading_ratio},
                              {"load_layer_ms", 1e3 * row.load_layer},
                              {"wait_layer_ms", 1e3 * row.wait_layer},
                              {"overlap_share", row.overlap_share},
                              {"ttft_ms", 1e3 * row.ttft_seconds}});
  return out;
}

namespace {

std::string loading_text(const BlendBench& b) {
  if (b.loading.empty()) return "";
  Table table({"tier", "layers", "load ms", "waited ms", "hidden", "TTFT ms"}, {2, 3, 4, 5});
  for (const BlendBench::Loading& row : b.loading)
    table.add({name(row.tier), row.ahead ? "ahead" : "when needed",
               format("%.2f", 1e3 * row.load_layer), format("%.2f", 1e3 * row.wait_layer),
               format("%.1f %%", 100 * row.overlap_share), format("%.1f", 1e3 * row.ttft_seconds)});
  return format(
             "\nChunks by where they lie, ratio %g: of a layer, medians of %u prompts, in "
             "turn:\n\n",
             b.loading_ratio, b.n_loads) +
         table.text();
}

}  // namespace

std::string to_text(const BlendBench& b) {
  Table arms({"arm", "computed", "KL to full", "attention", "TTFT ms"}, {1, 2, 3, 4});
  for (const BlendBench::Arm& arm : b.arms)
    arms.add({arm.label, format("%.1f %%", 100 * arm.recomputed_share), format("%.5f", arm.kl),
              format("%.4f", arm.attention), format("%.1f", 1e3 * arm.seconds)});
  Table layers({"layer", "deviation", "rank correlation with the next"}, {0, 1, 2});
  for (size_t layer = 0; layer < b.of_layer.size(); ++layer) {
    const bool has_next = layer > 0 && layer + 1 < b.of_layer.size();
    layers.add({std::to_string(layer), format("%.4g", b.of_layer[layer]),
                has_next ? format("%.3f", b.rank_correlation[layer - 1]) : "-"});
  }
  Table chunks({"chunk", "deviation"}, {0, 1});
  for (size_t chunk = 0; chunk < b.of_chunk.size(); ++chunk)
    chunks.add({std::to_string(chunk), format("%.4g", b.of_chunk[chunk])});
  return format(
             "%u chunks of %u tokens, then %u tokens: KL is their mean, attention the deviation of "
             "what they attend to.\n\n",
             b.n_chunks, b.chunk_tokens, b.question_tokens) +
         arms.text() +
         "\nDeviation of reused K and V, mean of the tokens behind the first chunk:\n\n" +
         layers.text() + "\nDeviation by the chunk's place, mean of the layers from 1 on:\n\n" +
         chunks.text() + loading_text(b);
}

}  // namespace kvasir::tool
