// The scale of a group of numbers, found by search: many scales are tried, the best fit of each
// rounding is solved for, and the one with the least weighted squared error is taken. The weights
// are those llama.cpp's reference encoders use where nothing is known of a model's inputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::gguf {

// x[i] is about scale q[i] - min, q in [0, most], scale and min >= 0.
struct ScaleMin {
  float scale = 0.0f, min = 0.0f;
};
// n = 32. Minimises sum_i w_i (scale q_i - min - x_i)^2, w_i = rms(x) + |x_i|.
ScaleMin fit_scale_min(const float* x, int most);

// x[i] is about scale q[i], q in [-32, 31]; n = 16. w_i = x_i^2. The sign of the scale is that with
// which the extreme value becomes -32.
float fit_scale(const float* x);

// x[i] is about scale IQ4_NL::kLevels[q[i]]; n = 32. w_i = x_i^2.
float fit_levels(const float* x);
// The index of the level that is nearest to x.
int nearest_level(float x);

}  // namespace kvasir::gguf
