// Prompts of chunks that were read before, in any order, and a question: the chunks' K and V are
// reused, and computed again where that matters most. Yao et al. 2024 (CacheBlend),
// arXiv:2405.16444; reuse of all is PromptCache, arXiv:2311.04934.
//
// The paper's three calls: fetch_kv is ChunkStore::fetch_kv, prefill_layer is a layer of
// Engine::step() with StepItem::placing, recompute and narrow, which masks by true positions, and
// synchronize is PlacedLayers::wait().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/blend/chunk_store.h"
#include "core/blend/narrowing.h"
#include "core/config/blend.h"
#include "core/model/layers/shape.h"
#include "core/runtime/engine.h"

namespace kvasir {

struct BlendPrompt {
  std::vector<TokenId> lead;      // always computed: the BOS, or nothing
  std::vector<ChunkId> chunks;    // in the order of the prompt, any number of times each
  std::vector<TokenId> question;  // always computed; one token at least
};

// Seconds that K and V of all chunks took in one layer.
struct LayerLoad {
  double load = 0;
  double wait = 0;  // of them, those in which nothing was computed
};

struct BlendReport {
  BlendMode mode = BlendMode::kFull;  // as carried out: never kAuto
  double ratio = 0;                   // as carried out; of modes that have one
  std::string reason;                 // of kAuto, why so; of kPrefix, why nothing was reused
  std::optional<ChunkTier> tier;  // of kAuto, where chunks are best kept: with kStore, those that
                                  // came from the store stay there alone
  std::vector<TierTime> tiers;    // seconds from each whose speed is known, the cheapest first
  uint32_t chunk_tokens = 0;
  // Tokens of chunks that each layer took through attention and feed-forward, [n_layers]; layers up
  // to the check layer take those that can deviate, the others those that were chosen.
  std::vector<uint32_t> recomputed;
  std::vector<LayerLoad> loads;  // [n_layers], of modes that reuse more than the first chunk
  double place_seconds = 0;  // K and V of chunks into the sequence, as far as that was waited for
  double recompute_seconds = 0;  // their tokens, all or those chosen
  double question_seconds = 0;
  double recomputed_share() const;  // of chunk_tokens, mean of the layers
  double load_seconds() const;      // of all layers
  // Of all layers. More than load_seconds() where the thread that loads had no processor for
  // itself.
  double wait_seconds() const;
  // Share of load_seconds() that was hidden behind computing; 0 where nothing was loaded.
  double overlap_share() const;
  double seconds() const { return place_seconds + recompute_seconds + question_seconds; }
};

struct Blended {
  SequenceId seq = 0;  // the caller's
  BlendReport report;
};

// One call at a time, as for the engine, which must outlive it.
class Blender {
 public:
  // bos: what chunks are read behind, and prompts lead with; none where the model has none or
  // chunks are to be read without.
  Blender(Engine& engine, const ModelShape& shape, StrategyId strategy, std::optional<TokenId> bos);

  ChunkStore& chunks() { return chunks_; }
  // Why the prompt cannot be read so: a sentence, or empty. Strategies that drop tokens or choose
  // by what a prompt's queries attended to cannot be followed, sliding windows neither.
  std::string cannot_blend(const BlendPrompt& prompt, const BlendConfig& config) const;
  // A new sequence that holds the prompt, ready to decode. logits [vocab]: of its last token. seed:
  // of kRandom. `between` is called between steps and may throw, to stop. Error(kInput) with
  // cannot_blend(). What it stores never gets a name by its content: it is no exact prefix.
  Blended blend(const BlendPrompt& prompt, const BlendConfig& config, uint64_t seed,
                std::span<float> logits, const std::function<void()>& between = {});

  // For who measures. A sequence with lead and chunks, all reused as of kReuse or
  // kReuseUncorrected, the chunks' end being its own.
  SequenceId place(const BlendPrompt& prompt, BlendMode mode,
                   const std::function<void()>& between = {});
  // Of each layer and token of the chunks, how far `reused` is from `full`, both of which hold the
  // prompt's lead and chunks (deviation.h).
  std::vector<std::vector<double>> deviations(const BlendPrompt& prompt, SequenceId reused,
                                              SequenceId full);

 private:
  struct Layout;
  Layout layout(const BlendPrompt& prompt) const;
  Blended blend_once(const BlendPrompt& prompt, const Layout& layout, const BlendConfig& config,
                     uint64_t seed, std::span<float> logits, const std::function<void()>& between);
  void keep_in(std::optional<ChunkTier> tier, const BlendPrompt& prompt);
  void read_lead(SequenceId seq, const BlendPrompt& prompt, const Layout& layout);
  std::vector<TierTime> tier_times(uint32_t n_tokens) const;
  Blended read_all(const BlendPrompt& prompt, const Layout& layout, bool reuses_first,
                   std::span<float> logits, const std::function<void()>& between);
  SequenceId place(const Layout& layout, const BlendPrompt& prompt, BlendMode mode,
                   std::vector<LayerLoad>* loads, const std::function<void()>& between);
  void place_piece(SequenceId seq, ChunkId chunk, uint32_t begin, uint32_t n, bool turns,
                   std::vector<LayerLoad>* loads);
  std::vector<int32_t> turns_of(const BlendPrompt& prompt, const Layout& layout) const;
  void load_layer(const BlendPrompt& prompt, uint32_t layer, float* k, float* v);
  // Places the chunks and computes tokens of them again, layer by layer.
  void place_and_recompute(SequenceId seq, const BlendPrompt& prompt, const Layout& layout,
                           const BlendConfig& config, uint64_t seed,
                           const Narrowing::TrueDeviation* truth, BlendReport& report);
  void recompute(SequenceId seq, const Layout& layout, const BlendConfig& config,
                 const Placing& placing, uint64_t seed, const Narrowing::TrueDeviation* truth,
                 BlendReport& report);
  // Of mode kAuto, at the check layer: the layers before it have shown what computing takes.
  void decide_ratio(const Layout& layout, double compute_layer, BlendConfig& config,
                    BlendReport& report) const;
  Narrowing::TrueDeviation true_deviation(const BlendPrompt& prompt, const Layout& layout,
                                          const std::function<void()>& between);

  Engine& engine_;
  const ModelShape& shape_;
  StrategyId strategy_;
  std::optional<TokenId> bos_;
  ChunkStore chunks_;
};

}  // namespace kvasir
