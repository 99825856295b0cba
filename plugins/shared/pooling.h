// Pooling of scores over neighbouring tokens, stride 1.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvasir::sdk {

inline constexpr const char* kPoolingNames[] = {"avgpool", "maxpool"};
enum class Pooling : uint32_t { kAverage, kMax };  // in the order of the names

// out[i] = mean or maximum of in[i - kernel / 2 .. i + kernel / 2], kernel odd. What lies outside
// [0, n) counts as zero in the mean and does not count in the maximum.
//   in, out  [n] f32, must not overlap
inline void pool(Pooling pooling, const float* in, size_t n, uint32_t kernel, float* out) {
  const size_t half = kernel / 2;
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = i - std::min(i, half), end = std::min(n, i + half + 1);
    if (pooling == Pooling::kMax) {
      out[i] = *std::max_element(in + begin, in + end);
      continue;
    }
    float sum = 0.0f;
    for (size_t j = begin; j < end; ++j) sum += in[j];
    out[i] = sum / static_cast<float>(kernel);
  }
}

}  // namespace kvasir::sdk
