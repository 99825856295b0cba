// See attention_bench.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/attention_bench.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/given_prompt.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kSampleTokens = 256;
constexpr uint32_t kChunk = 512;

PrescribedModel::Geometry geometry_of(const AttentionShape& s) {
  PrescribedModel::Geometry out;
  out.may_round = s.rounds;
  out.n_q_heads = s.n_q_heads;
  out.n_kv_heads = s.n_kv_heads;
  out.head_dim = out.v_head_dim = s.head_dim;
  for (const auto& depths : {s.depths, s.prompt_depths})
    for (const uint32_t depth : depths)
      out.max_context = std::max(out.max_context, depth + std::max(1u, s.n_prompt));
  return out;
}

// A strategy of one test: what all have, then its own.
StrategyConfig strategy_of(Options options, const AttentionShape& s,
                           const std::pair<std::string, std::string>& types, bool blocks) {
  options.cache_type_k = types.first;
  options.cache_type_v = types.second;
  options.strategy = blocks ? "random" : "dense";
  const auto set = [&](const std::string& key, uint64_t value) {
    options.set.push_back(key + "=" + std::to_string(value));
  };
  set("cache.block_size", s.block_size);
  set("cache.chunk_size", std::max(kChunk, s.n_prompt));
  set("cache.dense_below_tokens", 0);
  if (blocks) {
    set("cache.sink_tokens", 0);
    set("cache.window_tokens", s.window_tokens);
    set("selector.budget_tokens", uint64_t{std::max(1u, s.n_blocks)} * s.block_size);
  }
  return resolve_strategy(options);
}

// One row: a sequence that a token, or a piece of a prompt, is added to and taken from again.
struct Test {
  AttentionRow row;
  StrategyId strategy = 0;
  SequenceId seq = 0;
  std::vector<double> ms, attend_ms;
};

class Bench {
 public:
  Bench(const Options& options, const AttentionShape& shape);
  void sample();
  AttentionReport report(uint32_t n_repetitions) const;

 private:
  void add_strategies(const Options& options);
  void check_sequences() const;
  void add_tests();
  void add_test(AttentionKind kind, uint32_t depth, size_t type, SequenceId seq);
  void sample(Test& test);

  AttentionShape shape_;
  PluginHost host_;
  ProjectionSample sample_;
  PrescribedModel model_;
  std::unique_ptr<Engine> engine_;
  std::vector<Test> tests_;
  LimitMeter meter_;
  size_t round_ = 0;
};

void copy_row(const std::vector<float>& rows, size_t width, size_t row, float* to) {
  if (to) std::copy_n(rows.data() + row * width, width, to);
}

Bench::Bench(const Options& options, const AttentionShape& shape)
    : shape_(shape),
      host_(options),
      model_(
          geometry_of(shape),
          [this](uint32_t, int32_t token, float* q, float* k, float* v) {
            const auto row = static_cast<size_t>(token) % kSampleTokens;
            const size_t q_width = size_t{shape_.n_q_heads} * shape_.head_dim;
            const size_t k_width = size_t{shape_.n_kv_heads} * shape_.head_dim;
            copy_row(sample_.q[0], q_width, row, q);
            copy_row(sample_.k[0], k_width, row, k);
            copy_row(sample_.v[0], k_width, row, v);
          },
          [](uint32_t, std::span<const int32_t>, const float*) {}),
      meter_(host_.pool()) {
  sample_ = normal_sample(model_.shape(), kSampleTokens, options.seed);
  add_strategies(options);
  check_sequences();
  add_tests();
}

// Strategies 2 i and 2 i + 1: dense and blocks of shape_.types[i].
void Bench::add_strategies(const Options& options) {
  EngineOptions made;
  made.max_context = model_.shape().max_context;
  made.seed = options.seed;
  made.max_step_tokens = std::max(kChunk, shape_.n_prompt);
  for (const auto& types : shape_.types)
    for (const bool blocks : {false, true}) {
      Pipeline pipeline = build_pipeline(strategy_of(options, shape_, types, blocks),
                                         host_.registry(), host_.services());
      if (engine_)
        engine_->add_strategy(std::move(pipeline));
      else
        engine_ = std::make_unique<Engine>(model_, std::move(pipeline), host_.pool(),
                                           host_.services(), made);
    }
}

void Bench::check_sequences() const {
  uint64_t bytes = 0;
  for (StrategyId strategy = 0; strategy < 2 * shape_.types.size(); strategy += 2)
    for (const auto& depths : {shape_.depths, shape_.prompt_depths})
      for (const uint32_t depth : depths)
        bytes += engine_->sequence_bytes(strategy, depth + shape_.n_prompt).main;
  check_memory(bytes, "the keys and values of all rows", "", "give fewer or smaller depths in -d");
}

void Bench::add_test(AttentionKind kind, uint32_t depth, size_t type, SequenceId seq) {
  Test& test = tests_.emplace_back();
  test.strategy = static_cast<StrategyId>(2 * type + (kind == AttentionKind::kBlocks ? 1 : 0));
  test.seq = seq;
  test.row.kind = kind;
  test.row.depth = depth;
  test.row.n_queries = kind == AttentionKind::kPrompt ? shape_.n_prompt : 1;
  test.row.type_k = stored_type(engine_->pipeline(test.strategy), "type_k");
  test.row.type_v = stored_type(engine_->pipeline(test.strategy), "type_v");
}

void Bench::add_tests() {
  const GivenProjections projections =
      made_up_projections(sample_, model_.shape(), 1, host_.pool());
  ProgressBar bar("making up keys and values");
  const auto fill = [&](uint32_t depth, const std::vector<SequenceId>& seqs) {
    if (depth == 0) return;
    give_prompt(*engine_, seqs, depth, projections, GivenTo::kFew, [&](uint32_t done) {
      bar.update(done, depth);
      stop_if_interrupted();
    });
  };
  for (size_t type = 0; type < shape_.types.size(); ++type) {
    const auto dense = static_cast<StrategyId>(2 * type), blocks = dense + 1;
    for (const uint32_t depth : shape_.depths) {
      std::vector<SequenceId> seqs{engine_->open(dense)};
      if (shape_.n_blocks) seqs.push_back(engine_->open(blocks));
      fill(depth, seqs);
      add_test(AttentionKind::kDense, depth, type, seqs[0]);
      if (shape_.n_blocks) add_test(AttentionKind::kBlocks, depth, type, seqs[1]);
    }
    for (const uint32_t depth : shape_.prompt_depths) {
      if (shape_.n_prompt == 0) continue;
      const SequenceId seq = engine_->open(dense);
      fill(depth, {seq});
      add_test(AttentionKind::kPrompt, depth, type, seq);
    }
  }
}

void Bench::sample(Test& test) {
  const Attention& backend = *engine_->pipeline(test.strategy).attention;
  std::vector<float> logits(model_.shape().vocab_size);
  engine_->reset_engagement();
  const uint64_t before = backend.stats().nanos;
  const bool prompt = test.row.kind == AttentionKind::kPrompt;
  if (prompt) {
    std::vector<TokenId> tokens(shape_.n_prompt);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
    engine_->prefill(test.seq, tokens, {});
  } else {
    const Engine::DecodeItem item{test.seq, static_cast<TokenId>(round_ % kSampleTokens)};
    engine_->decode({&item, 1}, logits);
  }
  test.ms.push_back(static_cast<double>(backend.stats().nanos - before) / 1e6);
  const Engagement& counted = prompt ? engine_->prefill_engagement(test.strategy)
                                     : engine_->decode_engagement(test.strategy);
  test.attend_ms.push_back(static_cast<double>(counted.attend_nanos) / 1e6);
  test.row.kv_bytes = counted.kv_bytes_read;
  test.row.tokens_attended = counted.tokens_attended;
  engine_->truncate(test.seq, test.row.depth);
}

void Bench::sample() {
  for (size_t turn = 0; turn < tests_.size(); ++turn) {
    meter_.sample();
    sample(tests_[(round_ + turn) % tests_.size()]);
    stop_if_interrupted();
  }
  ++round_;
}

AttentionReport Bench::report(uint32_t n_repetitions) const {
  AttentionReport out;
  out.shape = shape_;
  out.n_repetitions = n_repetitions;
  out.backend = engine_->pipeline(0).attention->id();
  out.limits = meter_.limits();
  const double per_key = 4.0 * shape_.head_dim;  // a query head: 2 flop in K and in V
  for (const Test& test : tests_) {
    AttentionRow& row = out.rows.emplace_back(test.row);
    // The first repetition warms up.
    row.ms = typical(std::span(test.ms).subspan(1), 1);
    row.attend_ms = typical(std::span(test.attend_ms).subspan(1), 1).middle;
    const double n = row.n_queries, group = shape_.n_q_heads / shape_.n_kv_heads;
    row.flop = row.kind == AttentionKind::kPrompt
                   ? per_key * shape_.n_q_heads * (n * row.depth + n * (n + 1) / 2)
                   : per_key * group * static_cast<double>(row.tokens_attended);
  }
  return out;
}

}  // namespace

AttentionReport measure_attention(const Options& options, const AttentionShape& shape,
                                  uint32_t n_repetitions) {
  Bench bench(options, shape);
  ProgressBar bar("attention");
  for (uint32_t i = 0; i <= n_repetitions; ++i) {
    bench.sample();
    bar.update(i, n_repetitions);
  }
  return bench.report(n_repetitions);
}

}  // namespace kvasir::tool
