// Which tokens of reused chunks are computed again in each layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/config/blend.h"
#include "core/runtime/engine.h"

namespace kvasir {

// How many of n_tokens go on in each layer, gradual filtering of arXiv:2405.16444: all of n_most in
// the layers before check_layer, and in layer i from there on, of the n_after layers left,
//   ratio (1 + narrowing' (1 - 2 (i - check_layer) / (n_after - 1))) n_tokens,
// rounded, at most n_most, at least 1, never more than the layer before. Their mean is the ratio.
// narrowing' is narrowing, but no more than (1 - ratio) / ratio, so that no layer asks for more
// than all. n_most: those of n_tokens that can deviate.
std::vector<uint32_t> narrowing_schedule(uint32_t n_layers, uint32_t n_tokens, uint32_t n_most,
                                         const BlendConfig& config);

// Answers Engine's recomputation layer by layer, and keeps what it answered.
class Narrowing {
 public:
  // Of mode kOracle, [layer][position - first]: the deviations from a full pass, of the layer and
  // those after it together. What a layer leaves out no later one can have, so it looks ahead.
  struct TrueDeviation {
    uint32_t first = 0;  // position
    std::vector<std::vector<double>> of_layer;
  };
  Narrowing(BlendMode mode, std::vector<uint32_t> schedule, uint32_t check_layer, uint64_t seed,
            const TrueDeviation* truth, uint32_t k_width, uint32_t v_width)
      : mode_(mode),
        schedule_(std::move(schedule)),
        check_layer_(check_layer),
        seed_(seed),
        truth_(truth),
        k_width_(k_width),
        v_width_(v_width) {}

  std::vector<uint32_t> operator()(const RecomputedLayer& layer);
  void set_schedule(std::vector<uint32_t> schedule) { schedule_ = std::move(schedule); }
  const std::vector<uint32_t>& kept() const { return kept_; }  // [layers] tokens that went on

 private:
  std::vector<double> scores(const RecomputedLayer& layer) const;

  BlendMode mode_;
  std::vector<uint32_t> schedule_;  // [n_layers]
  uint32_t check_layer_;
  uint64_t seed_;
  const TrueDeviation* truth_;  // or null
  uint32_t k_width_, v_width_;  // floats of a token
  std::vector<uint32_t> kept_;
};

}  // namespace kvasir
