// See divergence.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/divergence.h"

#include <algorithm>
#include <cmath>

namespace kvasir::tool {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double high = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - high);
  return high + std::log(sum);
}

}  // namespace

TokenId most_likely(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double zp = log_sum_exp(p), zq = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - zp;
    sum += std::exp(log_p) * (log_p - (q[i] - zq));
  }
  return std::max(sum, 0.0);
}

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  return log_sum_exp(logits) - logits[static_cast<size_t>(token)];
}

}  // namespace kvasir::tool
