// How the scores that several query heads give to the same candidates become one score each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

// Quest (arXiv:2406.10774) leaves the rule open where query heads share a kv head. The numbers are
// those of the C ABI (KVASIR_REDUCE_*), which checks them where it meets this.
enum class ScoreRule : uint32_t {
  kSum = 0,
  kMean = 1,
  kMax = 2,
  kSoftmaxSum = 3,  // sum of the heads' probabilities, so that no head outweighs the others
};

// reduced[i] = over the heads g, s = score:
//   kSum         sum_g s[g][i]
//   kMean        sum_g s[g][i] / n_heads, one division at the end
//   kMax         max_g s[g][i]; of +0 and -0 the earlier head's; NaN is passed over, and where
//                there is nothing else the result is -inf
//   kSoftmaxSum  sum_g p[g][i],  p[g][i] = exp(a[g][i]) / sum_j exp(a[g][j]),
//                a[g][i] = scale * (s[g][i] - max_j s[g][j])
//
// The first three give the same bits on every SIMD target: those of a scalar loop that starts from
// 0 or -inf and takes one head after the other.
//
// kSoftmaxSum: the relative error of a share p[g][i] was measured at less than
//   5e-7 + 1.2e-7 * (|a[g][i]| + sum_j p[g][j] * |a[g][j]|),
// whatever n; the second part is what the rounding of `a` costs. a < -87 counts as 0. The last bits
// depend on the SIMD target. A head whose scores are all -inf adds 0; a NaN or a +inf in any head
// makes every result NaN.
//
//   score   [n_heads, n] f32, contiguous, not scaled; n_heads >= 1
//   scale   > 0, for kSoftmaxSum only: what turns a score into a logit
//   reduced [n] f32, written; must not overlap `score`
void reduce_scores(ScoreRule rule, const float* score, size_t n_heads, size_t n, float scale,
                   float* reduced);

}  // namespace kvasir::kernels
