// See narrowing.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/narrowing.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/blend/deviation.h"
#include "core/runtime/sequence/content_hash.h"

namespace kvasir {

std::vector<uint32_t> narrowing_schedule(uint32_t n_layers, uint32_t n_tokens, uint32_t n_most,
                                         const BlendConfig& config) {
  std::vector<uint32_t> schedule(n_layers, n_most);
  const uint32_t n_after = n_layers - std::min(n_layers, config.check_layer);
  const double steps = n_after > 1 ? n_after - 1 : 1;
  const double widest = config.ratio > 0 ? (1.0 - config.ratio) / config.ratio : 0.0;
  const double narrowing = n_after > 1 ? std::min(config.narrowing, widest) : 0.0;
  for (uint32_t i = 0; i < n_after; ++i) {
    const double share = config.ratio * (1.0 + narrowing * (1.0 - 2.0 * i / steps));
    const auto n = static_cast<uint32_t>(std::lround(share * n_tokens));
    uint32_t& of_layer = schedule[config.check_layer + i];
    of_layer = std::min(std::max(n, 1u), n_most);
    if (i > 0) of_layer = std::min(of_layer, schedule[config.check_layer + i - 1]);
  }
  return schedule;
}

std::vector<double> Narrowing::scores(const RecomputedLayer& layer) const {
  if (mode_ == BlendMode::kRatio)
    return kv_deviation({layer.k, layer.v}, {layer.old_k, layer.old_v}, layer.positions.size(),
                        k_width_, v_width_);
  std::vector<double> scores;
  for (const uint32_t pos : layer.positions) {
    if (mode_ == BlendMode::kOracle) {
      scores.push_back(truth_->of_layer[layer.layer][pos - truth_->first]);
    } else {  // the same draw in every layer: a token that goes on in one was kept in those before
      const std::array<uint64_t, 2> words{seed_, pos};
      scores.push_back(static_cast<double>(hash_of(words)[0] >> 11));
    }
  }
  return scores;
}

std::vector<uint32_t> Narrowing::operator()(const RecomputedLayer& layer) {
  const uint32_t n_keep = schedule_[layer.layer];
  std::vector<uint32_t> left(layer.positions.begin(), layer.positions.end());
  if (layer.layer >= check_layer_ && n_keep < left.size())
    left = keep_highest(layer.positions, scores(layer), n_keep);
  kept_.push_back(static_cast<uint32_t>(left.size()));
  return left;
}

}  // namespace kvasir
