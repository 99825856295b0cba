// The step loop: sequences, chunked prefill, decode of a batch, over one model and one pipeline.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/model/model.h"
#include "core/model/tokenizer.h"
#include "core/plugin/host.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/engagement.h"

namespace kvasir {

struct EngineOptions {
  uint32_t max_context = 4096;  // tokens per sequence
  uint32_t max_sequences = 1;   // of one decode step
  uint64_t seed = 0;            // for plugins that draw
  uint64_t model_hash = 0;
  bool check_numerics = false;  // refuse NaN and infinity from the backend
  // Told what each kv head of a sequence attends to, positions ascending, in every layer and call:
  // for tools that look. Null costs nothing.
  std::function<void(uint32_t layer, uint64_t seq, uint32_t kv_head,
                     std::span<const uint32_t> tokens)>
      on_attend;
};

using SequenceId = uint64_t;

// Not thread-safe: one call at a time. Errors: Error(kInput) for a prompt beyond max_context,
// PluginError when a plugin fails and the strategy says so (cache.on_fault) or nothing can replace
// it (storage, attention); the sequence of the failed call must then be closed.
class Engine {
 public:
  Engine(const Model& model, Pipeline pipeline, ThreadPool& pool, HostServices& services,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;

  SequenceId open();
  SequenceId fork(SequenceId parent);
  // Forgets tokens at positions >= kv_len. What follows is as in a sequence that never had them;
  // but where a choice was made after the cut that took the place of one made before it
  // (token_step, reuse_steps), the next token chooses anew.
  void truncate(SequenceId seq, uint32_t kv_len);
  void close(SequenceId seq);
  // The sequence as bytes, for load() of an engine over the same model, strategy and plugins;
  // `name` stands for the bytes in errors. See saved_sequence.h.
  std::vector<std::byte> save(SequenceId seq);
  SequenceId load(std::span<const std::byte> bytes, const std::string& name);
  uint32_t kv_len(SequenceId seq) const;
  std::span<const TokenId> tokens(SequenceId seq) const;  // cached ones
  // K and V that the sequence holds in storage, blocks it shares with forks included: less than
  // kv_len would need once a strategy has evicted.
  uint64_t kv_bytes(SequenceId seq) const;

  struct PrefillHooks {
    std::function<bool(uint32_t done, uint32_t total)> progress;  // after each chunk; false = stop
    // Logits of every position: rows [first_pos, first_pos + n) of the sequence, [n][vocab].
    std::function<void(uint32_t first_pos, uint32_t n, const float* logits)> all_logits;
  };
  // Appends a prompt (or a further turn). Returns the tokens done: fewer than given only when
  // progress() said stop. last_logits [vocab], or empty.
  uint32_t prefill(SequenceId seq, std::span<const TokenId> tokens, std::span<float> last_logits,
                   const PrefillHooks& hooks = {});

  struct DecodeItem {
    SequenceId seq;
    TokenId token;
  };
  // One token per sequence; logits [items][vocab].
  void decode(std::span<const DecodeItem> items, std::span<float> logits);

  const Engagement& prefill_engagement() const;
  const Engagement& decode_engagement() const;
  void reset_engagement();
  // Nanoseconds of one empty crossing of the plugin boundary, median of many: what the calls cost
  // besides what plugins do in them.
  double crossing_nanos();
  const Pipeline& pipeline() const;
  const kvasir_geometry& geometry() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
