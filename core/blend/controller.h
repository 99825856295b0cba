// How much of a prompt of chunks to compute again, and where to keep the chunks: what their loading
// hides, by times that were measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/blend.h"

namespace kvasir {

// Where K and V of a chunk lie before a prompt takes them, the cheapest first.
enum class ChunkTier {
  kStore,   // beyond the process: a folder or a server
  kFile,    // a file of the process
  kMemory,  // the storage's memory
};
const char* name(ChunkTier tier);  // "store", "file", "memory"
inline constexpr uint32_t kChunkTiers = 3;

// A mean speed, of what was measured so far: tokens of one layer per second.
class LayerSpeed {
 public:
  void add(uint64_t layer_tokens, double seconds) {
    layer_tokens_ += layer_tokens;
    seconds_ += seconds;
  }
  bool is_known() const { return layer_tokens_ > 0; }
  uint64_t layer_tokens() const { return layer_tokens_; }
  double seconds(uint64_t layer_tokens) const {
    return is_known()
               ? seconds_ * static_cast<double>(layer_tokens) / static_cast<double>(layer_tokens_)
               : 0.0;
  }

 private:
  uint64_t layer_tokens_ = 0;
  double seconds_ = 0;
};

struct TierTime {
  ChunkTier tier = ChunkTier::kMemory;
  double load_layer = 0;  // seconds that a layer of all chunks of the prompt takes from there
};

// Seconds that one layer of all chunks of a prompt takes: loading their K and V from where they
// are, and computing all their tokens.
struct BlendTimes {
  double load_layer = 0, compute_layer = 0;
  std::vector<TierTime> tiers{};  // those whose speed is known, the cheapest first
};

struct BlendDecision {
  double ratio = 1;
  std::optional<ChunkTier> tier{};  // where to keep the chunks; none where no speed is known
  std::string reason;               // a sentence with the figures it was made from
};

// Of mode kAuto: why a prompt of so few tokens of chunks is computed whole; empty: it is not.
std::string too_few_to_blend(uint32_t n_tokens, const BlendConfig& config);

// Of mode kAuto (arXiv:2405.16444, section 5.1): the ratio r at which r compute_layer = load_layer,
// at most 1 and at least min_ratio: computing so much costs no time where a layer is loaded while
// the one before is computed. min_ratio where compute_layer is 0, which was not measured. The tier
// is the cheapest one with load_layer <= r compute_layer; where no tier is as fast, the fastest.
BlendDecision decide(const BlendTimes& times, const BlendConfig& config);

}  // namespace kvasir
