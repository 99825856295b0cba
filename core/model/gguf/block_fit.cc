// See block_fit.h. All candidates are tried at once, each in a lane of its own: the sums of a
// candidate are added up in one order on every machine, and the compiler makes vectors of lanes.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/block_fit.h"

#include <array>

#include "core/model/gguf/blocks.h"
#include "core/model/gguf/blocks_32.h"

namespace kvasir::gguf {
namespace {

template <size_t kLanes>
using Lanes = std::array<float, kLanes>;

// ---- scale and minimum ----

constexpr size_t kGroup = 32;
constexpr size_t kMinTries = 24;

// Inverses of the scales that are tried: those with which the span of the group becomes
// most - 1.2 ... most + 1.1. Below `most` the upper end of the range stays unused, above it the
// largest numbers are cut.
Lanes<kMinTries> inverses_around(float most, float span) {
  Lanes<kMinTries> inverse;
  for (size_t c = 0; c < kMinTries; ++c)
    inverse[c] = (most - 1.2f + 0.1f * static_cast<float>(c)) / span;
  return inverse;
}

struct MinSums {
  Lanes<kMinTries> q{}, qq{}, qx{};  // sum w q, w q^2, w q x
  float w = 0.0f, x = 0.0f;          // sum w, w x
};

// x counts from `low`: as small as it gets, so that the sums lose no digits.
MinSums sum_tries(const float* x, float low, float rms, const Lanes<kMinTries>& inverse,
                  float most) {
  MinSums sums;
  for (size_t i = 0; i < kGroup; ++i) {
    const float w = rms + std::fabs(x[i]);
    const float above = x[i] - low;
    const float wx = w * above;
    sums.w += w;
    sums.x += wx;
    for (size_t c = 0; c < kMinTries; ++c) {
      const float q = clamped(nearest(above * inverse[c]), 0.0f, most);
      sums.q[c] += w * q;
      sums.qq[c] += w * q * q;
      sums.qx[c] += wx * q;
    }
  }
  return sums;
}

}  // namespace

// Of one rounding q: the normal equations of the least squares in scale and offset = -min, and
// offset = 0 where they ask for a positive one, which no block has.
ScaleMin fit_scale_min(const float* x, int most) {
  const float low = std::min(0.0f, *std::min_element(x, x + kGroup));
  const float span = *std::max_element(x, x + kGroup) - low;
  if (span < kLeastOfBlock) return {0.0f, -low};
  float squares = 0.0f;
  for (size_t i = 0; i < kGroup; ++i) squares += x[i] * x[i];
  const float rms = std::sqrt(squares / static_cast<float>(kGroup));
  const auto highest = static_cast<float>(most);
  const MinSums s = sum_tries(x, low, rms, inverses_around(highest, span), highest);
  ScaleMin best{span / highest, -low};
  float best_gain = -1.0f;  // the larger, the smaller the error: what of sum w x^2 is explained
  for (size_t c = 0; c < kMinTries; ++c) {
    const float determinant = s.w * s.qq[c] - s.q[c] * s.q[c];
    if (!(determinant > 0.0f)) continue;
    float scale = (s.w * s.qx[c] - s.q[c] * s.x) / determinant;
    float offset = (s.qq[c] * s.x - s.q[c] * s.qx[c]) / determinant;
    if (low + offset > 0.0f) {
      offset = -low;
      scale = (s.qx[c] - offset * s.q[c]) / s.qq[c];
    }
    const float gain = 2.0f * (scale * s.qx[c] + offset * s.x) - scale * scale * s.qq[c] -
                       offset * offset * s.w - 2.0f * scale * offset * s.q[c];
    if (scale > 0.0f && gain > best_gain) {
      best_gain = gain;
      best = {scale, -(low + offset)};
    }
  }
  return best;
}

// ---- scale alone ----

namespace {

// Of rounding c the best scale is sum w q x / sum w q^2; what it leaves of sum w x^2 is least where
// (sum w q x)^2 / sum w q^2 is largest.
template <size_t kLanes>
struct ScaleSums {
  Lanes<kLanes> qq{}, qx{};
  float best_scale() const {
    float best = 0.0f, most_explained = 0.0f;
    for (size_t c = 0; c < kLanes; ++c) {
      if (!(qq[c] > 0.0f)) continue;
      const float explained = qx[c] * qx[c] / qq[c];
      if (!(explained > most_explained)) continue;
      most_explained = explained;
      best = qx[c] / qq[c];
    }
    return best;
  }
};

}  // namespace

float fit_scale(const float* x) {
  constexpr size_t n = 16, kTries = 20;
  const float end = extreme(x, n);
  if (std::fabs(end) < kLeastOfBlock) return 0.0f;
  Lanes<kTries> inverse;  // the extreme becomes -31 ... -32.9
  for (size_t c = 0; c < kTries; ++c) inverse[c] = -(31.0f + 0.1f * static_cast<float>(c)) / end;
  ScaleSums<kTries> sums;
  for (size_t i = 0; i < n; ++i) {
    const float part = x[i] / end;  // so that no power of a small number is lost
    const float w = part * part;
    for (size_t c = 0; c < kTries; ++c) {
      const float q = clamped(nearest(x[i] * inverse[c]), -32.0f, 31.0f);
      sums.qq[c] += w * q * q;
      sums.qx[c] += w * part * q;
    }
  }
  return sums.best_scale() * end;
}

// ---- levels ----

namespace {

constexpr size_t kLevels = std::size(IQ4_NL::kLevels);

// The middle between level k and the next.
constexpr std::array<float, kLevels - 1> kMiddles = [] {
  std::array<float, kLevels - 1> middles{};
  for (size_t k = 0; k + 1 < kLevels; ++k)
    middles[k] = 0.5f * static_cast<float>(IQ4_NL::kLevels[k] + IQ4_NL::kLevels[k + 1]);
  return middles;
}();

constexpr std::array<float, kLevels - 1> kSteps = [] {
  std::array<float, kLevels - 1> steps{};
  for (size_t k = 0; k + 1 < kLevels; ++k)
    steps[k] = static_cast<float>(IQ4_NL::kLevels[k + 1] - IQ4_NL::kLevels[k]);
  return steps;
}();

}  // namespace

int nearest_level(float x) {
  int level = 0;
  for (const float middle : kMiddles) level += x > middle ? 1 : 0;
  return level;
}

float fit_levels(const float* x) {
  constexpr size_t n = 32, kTries = 16;
  const float end = extreme(x, n);
  if (std::fabs(end) < kLeastOfBlock) return 0.0f;
  // The extreme becomes -120 ... -134 or 104 ... 118: the ends of the levels are -127 and 113.
  Lanes<kTries> inverse;
  for (size_t c = 0; c < kTries / 2; ++c) {
    inverse[c] = -(120.0f + 2.0f * static_cast<float>(c)) / end;
    inverse[kTries / 2 + c] = (104.0f + 2.0f * static_cast<float>(c)) / end;
  }
  ScaleSums<kTries> sums;
  for (size_t i = 0; i < n; ++i) {
    const float part = x[i] / end;
    const float w = part * part;
    Lanes<kTries> q;
    q.fill(static_cast<float>(IQ4_NL::kLevels[0]));
    for (size_t k = 0; k + 1 < kLevels; ++k)
      for (size_t c = 0; c < kTries; ++c)
        q[c] += x[i] * inverse[c] > kMiddles[k] ? kSteps[k] : 0.0f;
    for (size_t c = 0; c < kTries; ++c) {
      sums.qq[c] += w * q[c] * q[c];
      sums.qx[c] += w * part * q[c];
    }
  }
  return sums.best_scale() * end;
}

}  // namespace kvasir::gguf
