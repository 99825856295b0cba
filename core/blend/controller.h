// How much of a prompt of chunks to compute again: what the time of loading the chunks hides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/config/blend.h"

namespace kvasir {

// Seconds that one layer of all chunks of a prompt takes, as measured or estimated: reading their K
// and V from storage, and computing all their tokens.
struct BlendTimes {
  double load_layer = 0, compute_layer = 0;
};

// A mean speed, of what was measured so far: tokens of one layer per second.
class LayerSpeed {
 public:
  void add(uint64_t layer_tokens, double seconds) {
    layer_tokens_ += layer_tokens;
    seconds_ += seconds;
  }
  bool is_known() const { return layer_tokens_ > 0; }
  double seconds(uint64_t layer_tokens) const {
    return is_known()
               ? seconds_ * static_cast<double>(layer_tokens) / static_cast<double>(layer_tokens_)
               : 0.0;
  }

 private:
  uint64_t layer_tokens_ = 0;
  double seconds_ = 0;
};

struct BlendDecision {
  BlendMode mode = BlendMode::kFull;  // never kAuto
  double ratio = 0;
  std::string reason;  // a sentence with the figures it was made from
};

// Of mode kAuto: fewer than min_tokens tokens of chunks are computed, all of them. Else the ratio r
// at which r compute_layer = load_layer, but at least min_ratio: computing so much costs no time
// where a layer loads while the one before is computed (arXiv:2405.16444, section 5.1). min_ratio
// where compute_layer is 0: it was not measured, for no chunk was computed whole.
BlendDecision decide(uint32_t n_tokens, const BlendTimes& times, const BlendConfig& config);

}  // namespace kvasir
