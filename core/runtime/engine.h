// Sequences under strategies over one model, and steps of mixed work: pieces of prompts and decoded
// tokens of any of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/layers/model.h"
#include "core/model/tokenizer/tokenizer.h"
#include "core/plugin/host.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/memory_bytes.h"
#include "core/runtime/step/engagement.h"
#include "core/runtime/step/given.h"
#include "core/runtime/step/placing.h"

namespace kvasir {

struct EngineOptions {
  uint32_t max_context = 4096;  // tokens per sequence
  uint32_t max_sequences = 1;   // that decode in one step
  uint32_t max_step_tokens =
      0;              // of one step; at least max_sequences and the strategy's chunk_size
  uint64_t seed = 0;  // for plugins that draw
  // Names the model: all bytes of its weights and settings. Asked when a sequence is saved or
  // loaded, or an option of a plugin names a file, for it takes time. Null: 0.
  std::function<uint64_t()> model_hash;
  // Told what each kv head of a sequence attends to, positions ascending, in every layer and call:
  // for tools that look. Null costs nothing.
  std::function<void(uint32_t layer, uint64_t seq, uint32_t kv_head,
                     std::span<const uint32_t> tokens)>
      on_attend;
};

using SequenceId = uint64_t;
using StrategyId = uint32_t;  // in the order they were added, 0 is the constructor's

// Asked in each layer of a recomputation, before anything is replaced: which of the positions go
// on, ascending; the others keep their K and V from here on. k, v: computed anew, as they would be
// stored [positions][n_kv_heads][head_dim or v_dim]; old_k, old_v: what is stored now.
struct RecomputedLayer {
  uint32_t layer;
  std::span<const uint32_t> positions;
  const float *k, *v, *old_k, *old_v;
};
using NarrowRecompute = std::function<std::vector<uint32_t>(const RecomputedLayer&)>;

// What one sequence does in a step, one of five things:
//   reads the next tokens of its prompt (begin_prompt);
//   decodes one token;
//   has tokens verified: more than one, or any with `parents`. The sequence itself stays as it is
//     until Engine::accept() says which of them it keeps;
//   computes tokens that it holds again (`recompute`), at their positions and densely: K and V are
//     replaced layer by layer. What selectors have chosen is chosen anew;
//   takes K and V of the next tokens of its prompt from elsewhere (`placing`) and computes some of
//     them (`recompute`) anew, in each layer one after the other.
// Tokens of a prompt may come with their queries, keys and values (`given`), which are stored and
// told to plugins as those of a prompt are, while the model computes nothing.
struct StepItem {
  SequenceId seq = 0;
  std::span<const TokenId> tokens = {};
  // [vocab], of the last token; of tokens to verify [tokens][vocab]; or empty.
  std::span<float> logits = {};
  // Logits of every token, some at a time: of positions [first_pos, first_pos + n), [n][vocab].
  std::function<void(uint32_t first_pos, uint32_t n, const float* logits)> all_logits = {};
  // Of tokens to verify: the one that each follows, by index, -1 = the sequence as it is; a parent
  // comes before its children. Empty: each follows the one before. Each token selects for itself,
  // as if those on its path had been decoded one at a time. With all_logits the position is the
  // token's index.
  std::span<const int32_t> parents = {};
  // Positions, ascending. tokens is empty then, but with `placing`: these are among tokens.
  std::span<const uint32_t> recompute = {};
  NarrowRecompute narrow = {};  // null: all go on; else the item is alone in its step
  // Sequences of other strategies that read the same piece of the same prompt (Engine::can_follow):
  // K, V and attention are computed once, and each strategy's plugins see the prompt. They hold the
  // same tokens as `seq` before and after.
  std::span<const SequenceId> followers = {};
  // Of tokens of a prompt: what the model would project. The item is alone in its step and has no
  // logits. See step/given.h for what is attended.
  GivenProjections given = {};
  // Of `given`: its keys are rotated already, each for a position that lies so many before the
  // token's, and are turned by that difference alone (not at all where the strategy stores keys
  // before RoPE). [tokens], or empty: keys are given before RoPE.
  std::span<const int32_t> given_turn = {};
  GivenTo given_to = GivenTo::kFew;  // of `given`
  // Not owned; the item is alone in its step. Of its tokens only those at `recompute` count against
  // max_step_tokens(): the others go through no layer.
  const Placing* placing = nullptr;
};

struct ItemResult {
  std::exception_ptr error;  // null: done
  // The sequence is not what it was before the step: all that can be done is to close it. Else an
  // item with an error has changed nothing.
  bool is_lost = false;
  std::vector<std::exception_ptr> follower_errors = {};  // [followers]; those are lost
  std::string text() const;                              // of the error, or empty
};

// Not thread-safe: one call at a time. A plugin's fault, a lost block or a full storage end
// the items they concern, the other items go on. A selector's fault ends nothing: its step is
// dense, unless the strategy says cache.on_fault = "fail".
class Engine {
 public:
  Engine(const Model& model, Pipeline pipeline, ThreadPool& pool, HostServices& services,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;

  // A further strategy over the same model, with selectors and representative of its own; storage
  // and backend are those of the first strategy whose plugin, options and blocks are the same.
  StrategyId add_strategy(Pipeline pipeline);
  // Whether a sequence of `follower` can read its prompt with one of `leader`: both share storage
  // and backend, and read prompts densely.
  bool can_follow(StrategyId leader, StrategyId follower) const;

  SequenceId open(StrategyId strategy = 0);
  SequenceId fork(SequenceId parent);
  // Forgets tokens at positions >= kv_len; a prompt that is not read whole ends there. What follows
  // is as in a sequence that never had them; but where a choice was made after the cut that took
  // the place of one made before it (token_step, reuse_steps), the next token chooses anew.
  void truncate(SequenceId seq, uint32_t kv_len);
  void close(SequenceId seq);
  // The sequence as bytes, for load() of an engine over the same model, strategy and plugins;
  // `name` stands for the bytes in errors. See saved_sequence.h.
  std::vector<std::byte> save(SequenceId seq);
  // In pieces, in their order: no copy of the sequence is made.
  void save(SequenceId seq, const std::function<void(std::span<const std::byte>)>& sink);
  SequenceId load(std::span<const std::byte> bytes, const std::string& name,
                  StrategyId strategy = 0);
  uint32_t kv_len(SequenceId seq) const;
  std::span<const TokenId> tokens(SequenceId seq) const;  // cached ones
  // K and V of tokens that the sequence holds, as f32: k [positions][n_kv_heads][head_dim], v
  // likewise with v_head_dim. Keys are as storage has them, rotated to their positions unless
  // geometry().k_state says otherwise. positions ascend. `given` and `placing` of another
  // sequence's step may call it. Returns how many blocks the storage had to bring into memory.
  // Error(kInput) where a strategy has evicted tokens.
  uint64_t read_kv(SequenceId seq, uint32_t layer, std::span<const uint32_t> positions, float* k,
                   float* v);
  // K and V that the sequence holds in storage, blocks it shares with forks included: less than
  // kv_len would need once a strategy has evicted.
  uint64_t kv_bytes(SequenceId seq) const;
  // What make_plan() counts for one sequence of n_tokens: K, V, records, and the memory of plugins.
  // The K and V of its first n_shared tokens are another sequence's; a strategy that evicts may
  // copy what it keeps of them, and then they count.
  MemoryBytes sequence_bytes(StrategyId strategy, uint32_t n_tokens, uint32_t n_shared = 0) const;

  // Before the prompt of an empty sequence: gives it the blocks from the prompt's start that the
  // storage has kept of earlier sequences, also of other processes, as if they had been read.
  // Returns how many tokens they hold; the prompt that is left begins behind them. 0 where the
  // storage keeps nothing, and where the strategy needs what only a computed prompt gives, which
  // the log says once.
  uint32_t restore(SequenceId seq, std::span<const TokenId> prompt);
  // Of how many tokens restore() finds multiples; 0: it finds nothing, for no prompt.
  uint32_t restore_unit(StrategyId strategy = 0) const;
  // restore() a layer at a time, of sequences whose K and V are read (read_kv) before all layers
  // are there. The first one: returns how many tokens the storage has there, 0: none, and the
  // sequence stays empty. Nothing but the next two, read_kv() and close() may follow.
  uint32_t restore_first_layer(SequenceId seq, std::span<const TokenId> prompt);
  // False: the storage has lost some of it since, and the sequence can only be closed.
  bool restore_layer(SequenceId seq, uint32_t layer);
  bool has_layer(SequenceId seq, uint32_t layer) const;  // false: it was not restored yet
  // Likewise all that are missing. True: the sequence is as restore() would have made it.
  bool restore_other_layers(SequenceId seq);
  // The next n_tokens given to the sequence are a prompt (or a further turn). It may be read in
  // pieces of any size, with any steps of other sequences between them. Error(kInput) when it does
  // not fit the context.
  void begin_prompt(SequenceId seq, uint32_t n_tokens);
  uint32_t prompt_left(SequenceId seq) const;  // tokens of the prompt that are not read yet
  // What was read is the prompt: for one that is given up half-way.
  void end_prompt(SequenceId seq);
  // All items in one pass over the layers. A sequence stands in one item at most, and all tokens
  // are at most max_step_tokens(). Throws what concerns every item; each is lost then.
  std::vector<ItemResult> step(std::span<const StepItem> items);
  uint32_t max_step_tokens() const;
  uint32_t vocab_size() const;
  // Ends a verification: the sequence goes on behind `token` (an index into the item's tokens) as
  // if the path to it had been decoded one token at a time; -1: behind none. Until then the
  // sequence can do nothing else.
  void accept(SequenceId seq, int32_t token);
  // Why a strategy cannot verify several tokens in a step, or compute tokens again: a sentence, or
  // empty. Such items end with it as their error.
  std::string cannot_verify(StrategyId strategy) const;
  std::string cannot_recompute(StrategyId strategy) const;

  struct PrefillHooks {
    std::function<bool(uint32_t done, uint32_t total)> progress;  // after each piece; false = stop
    std::function<void(uint32_t first_pos, uint32_t n, const float* logits)> all_logits;
  };
  // A whole prompt, in pieces of the strategy's chunk_size. Returns the tokens done: fewer than
  // given only when progress() said stop. last_logits [vocab], or empty. Throws the item's error.
  uint32_t prefill(SequenceId seq, std::span<const TokenId> tokens, std::span<float> last_logits,
                   const PrefillHooks& hooks = {});

  struct DecodeItem {
    SequenceId seq;
    TokenId token;
  };
  // One token per sequence; logits [items][vocab]. Throws the first error of an item.
  void decode(std::span<const DecodeItem> items, std::span<float> logits);

  const Engagement& prefill_engagement(StrategyId strategy = 0) const;
  const Engagement& decode_engagement(StrategyId strategy = 0) const;
  // Of the K, V and records that `counted`, of this strategy, has read: bytes in a device's memory.
  uint64_t device_bytes_read(StrategyId strategy, const Engagement& counted) const;
  void reset_engagement();
  // Nanoseconds of one empty crossing of the plugin boundary, median of many: what the calls cost
  // besides what plugins do in them.
  double crossing_nanos();
  const Pipeline& pipeline(StrategyId strategy = 0) const;
  const kvasir_geometry& geometry(StrategyId strategy = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
