// What the runtime's tests share: tiny random models, engines from TOML, views into recording
// plugins, and a forward pass whose attention the test decides token by token.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/plugin/registry.h"
#include "core/runtime/engine.h"
#include "tests/plugins/fakes/calls.h"
#include "tests/plugins/fakes/recording.h"
#include "tests/support/larger_or_nan.h"

namespace doctest {
template <>
struct StringMaker<std::vector<uint32_t>> {
  static String convert(const std::vector<uint32_t>& list);
};
}  // namespace doctest

namespace kvasir::test {

// A llama of 3 layers, d_model 64, f32, in memory for the whole test run.
struct TinyModel {
  const GgufFile* file;
  const Model* model;
};
TinyModel tiny_model(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim = 16);

ThreadPool& test_pool();  // two workers, bound to nothing; for models of a test's own

std::vector<TokenId> some_tokens(size_t n, uint32_t seed = 1);
// The i-th token of a generation that does not ask the model; another path is another generation.
TokenId token_at(uint32_t i, uint32_t path = 0);

using Logits = std::vector<std::vector<float>>;  // of one step or token after the other

// Host services with a readable log, and engines over them.
struct Bench {
  explicit Bench(uint32_t n_q_heads = 8, uint32_t n_kv_heads = 2, uint32_t head_dim = 16);
  ~Bench();  // what engines that outlive it log is lost
  Bench(const Bench&) = delete;
  // `toml` may leave out [storage] (dram, f32) and [attention] (cpu).
  std::unique_ptr<Engine> engine(const std::string& toml, EngineOptions options = {});
  // The same over another model, which must outlive the engine.
  std::unique_ptr<Engine> engine(const Model& model, const std::string& toml,
                                 EngineOptions options = {});
  // A strategy that is resolved already, with all its sections.
  std::unique_ptr<Engine> engine(const StrategyConfig& strategy, EngineOptions options = {});
  std::unique_ptr<Engine> engine(const Model& model, const StrategyConfig& strategy,
                                 EngineOptions options = {});
  // For Engine::add_strategy.
  Pipeline pipeline(const StrategyConfig& strategy);
  StrategyConfig strategy(const std::string& toml);  // as engine(toml) completes it

  TinyModel tiny;
  std::vector<std::string> log;
};

// "plugin = 'kvasir.test.recording_attention'" under [attention].
extern const std::string kRecording;

Recording& recording_of(Engine& engine);
Calls& calls_of(Engine& engine);
double probe(const Instance& instance, uint32_t item);  // of a fake: what it has seen

std::vector<float> prefill(Engine& engine, SequenceId seq, std::span<const TokenId> tokens);
std::vector<float> decode(Engine& engine, SequenceId seq, TokenId token);
double largest(std::span<const float> a);
// Largest differences; NaN if one is NaN. The relative one is that of the largest number wanted,
// step by step.
double max_difference(std::span<const float> a, std::span<const float> b);
double max_difference(const Logits& a, const Logits& b);
double relative_difference(const Logits& got, const Logits& want);
TokenId best(std::span<const float> logits);

// Tokens a sequence and kv head attended to in one run(), over all parts, ascending.
std::vector<uint32_t> attended(const RecordedRun& run, uint64_t seq, uint32_t kv_head);
std::vector<uint32_t> up_to(uint32_t n);  // 0, 1, … n - 1
std::vector<uint32_t> between(uint32_t begin, uint32_t end);

// The model's dense layers around an attention in double precision that is told for every layer,
// position and query head which keys to see. One token at a time. RoPE is interleaved, its own.
class TokenForward {
 public:
  struct Key {
    uint32_t token;
    double log_weight = 0.0;
    bool constant = false;  // query turned to pos_const, key to 0
  };
  using Choose = std::function<std::vector<Key>(uint32_t layer, uint32_t pos, uint32_t q_head)>;

  explicit TokenForward(const TinyModel& tiny, uint32_t pos_const = 0);
  // Logits after `token`, which stands at position n_tokens().
  std::vector<float> step(TokenId token, const Choose& choose);
  uint32_t n_tokens() const { return n_tokens_; }

  // Probability of each key seen, of the last step; [layer][q_head].
  using Mass = std::vector<std::pair<uint32_t, double>>;
  const Mass& mass(uint32_t layer, uint32_t q_head) const { return mass_[layer][q_head]; }
  // Valid inside step(), for the token at hand: attention input of the layer, rotated query of
  // (layer, q_head) and keys.
  const std::vector<float>& input() const { return x_; }
  const std::vector<double>& query(uint32_t q_head) const { return q_[q_head]; }
  const std::vector<double>& constant_query(uint32_t q_head) const { return q_constant_[q_head]; }
  const std::vector<double>& key(uint32_t layer, uint32_t kv_head, uint32_t token) const {
    return k_[layer][kv_head][token];
  }
  const std::vector<double>& raw_key(uint32_t layer, uint32_t kv_head, uint32_t token) const {
    return k_raw_[layer][kv_head][token];
  }
  // The query of `layer` computed from the attention input of the layer before, at this position.
  std::vector<std::vector<double>> speculated_query(uint32_t layer) const;

 private:
  std::vector<double> turned(const float* x, double pos) const;
  void attend(uint32_t layer, const Choose& choose, std::vector<float>& o);

  const Model& model_;
  ModelShape shape_;
  uint32_t pos_const_, n_tokens_ = 0;
  std::vector<float> previous_x_, x_;
  std::vector<std::vector<double>> q_, q_constant_;
  std::vector<std::vector<std::vector<std::vector<double>>>> k_, k_raw_, v_;  // [layer][head][t]
  std::vector<std::vector<Mass>> mass_;
};

// Everything up to the position, for every head.
std::vector<TokenForward::Key> everything(uint32_t pos);

}  // namespace kvasir::test
