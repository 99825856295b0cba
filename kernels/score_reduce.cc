// Scores of several query heads into one: a pass over all heads at once, or a softmax per head.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/score_reduce.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/score_reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/for_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// ------------------------------------------------------------------ sum, mean, max

template <class D>
HWY_INLINE hn::Vec<D> sum_at(D d, const float* score, size_t n_heads, size_t n, size_t i) {
  auto sum = hn::Zero(d);
  for (size_t g = 0; g < n_heads; ++g) sum = hn::Add(sum, hn::LoadU(d, score + g * n + i));
  return sum;
}

void sum_heads(const float* score, size_t n_heads, size_t n, float* reduced) {
  for_vectors(n, [&](auto d, size_t i)
                     HWY_ATTR { hn::StoreU(sum_at(d, score, n_heads, n, i), d, reduced + i); });
}

void mean_heads(const float* score, size_t n_heads, size_t n, float* reduced) {
  const auto heads = static_cast<float>(n_heads);
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    const auto sum = sum_at(d, score, n_heads, n, i);
    hn::StoreU(hn::Div(sum, hn::Set(d, heads)), d, reduced + i);
  });
}

void max_heads(const float* score, size_t n_heads, size_t n, float* reduced) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    auto high = hn::Set(d, kLowest);
    for (size_t g = 0; g < n_heads; ++g) {
      const auto s = hn::LoadU(d, score + g * n + i);
      high = hn::IfThenElse(hn::Lt(high, s), s, high);  // hn::Max differs by target on NaN and -0
    }
    hn::StoreU(high, d, reduced + i);
  });
}

// ------------------------------------------------------------------ sum of softmaxes

float largest(const float* line, size_t n) {
  const F32 d;
  VecF32 high = hn::Set(d, kLowest);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) high = hn::Max(hn::LoadU(d, line + i), high);
  float most = hn::GetLane(hn::MaxOfLanes(d, high));
  for (; i < n; ++i) most = line[i] > most ? line[i] : most;
  return most;
}

// exp(scale * (line[i] - shift)), no more than 1.
template <class D>
HWY_INLINE hn::Vec<D> exp_at(D d, const float* line, size_t i, float shift, float scale) {
  const auto above = hn::Sub(hn::LoadU(d, line + i), hn::Set(d, shift));
  return exp_nonpositive(d, hn::Mul(above, hn::Set(d, scale)));
}

// Lanes in f32 over at most 16 vectors, those sums in double: that bounds the error whatever n.
double sum_exp(const float* line, size_t n, float shift, float scale) {
  const F32 d;
  const hn::CappedTag<float, 1> one;
  const size_t step = 16 * hn::Lanes(d);
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += step) {
    const size_t end = begin + step < n ? begin + step : n;
    VecF32 sum = hn::Zero(d);
    size_t i = begin;
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      sum = hn::Add(sum, exp_at(d, line, i, shift, scale));
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; i < end; ++i) {
      total += static_cast<double>(hn::GetLane(exp_at(one, line, i, shift, scale)));
    }
  }
  return total;
}

// The exponentials are computed twice, so that the call needs no scratch.
void softmax_sum_heads(const float* score, size_t n_heads, size_t n, float scale, float* reduced) {
  for (size_t g = 0; g < n_heads; ++g) {
    const float* line = score + g * n;
    const float high = largest(line, n);
    const float shift = high == kLowest ? 0.0f : high;  // exp(-inf - 0) = 0
    const double sum = sum_exp(line, n, shift, scale);
    const float inverse = sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum);
    for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
      const auto before = g == 0 ? hn::Zero(d) : hn::LoadU(d, reduced + i);
      const auto e = exp_at(d, line, i, shift, scale);
      hn::StoreU(hn::MulAdd(e, hn::Set(d, inverse), before), d, reduced + i);
    });
  }
}

void reduce(ScoreRule rule, const float* score, size_t n_heads, size_t n, float scale,
            float* reduced) {
  switch (rule) {
    case ScoreRule::kSum:
      return sum_heads(score, n_heads, n, reduced);
    case ScoreRule::kMean:
      return mean_heads(score, n_heads, n, reduced);
    case ScoreRule::kMax:
      return max_heads(score, n_heads, n, reduced);
    case ScoreRule::kSoftmaxSum:
      return softmax_sum_heads(score, n_heads, n, scale, reduced);
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(reduce);

void reduce_scores(ScoreRule rule, const float* score, size_t n_heads, size_t n, float scale,
                   float* reduced) {
  HWY_DYNAMIC_DISPATCH(reduce)(rule, score, n_heads, n, scale, reduced);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
