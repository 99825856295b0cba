// See predictions.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/predictions.h"

#include "tools/kvasir/session/divergence.h"

namespace kvasir::tool {

void Predictions::add(size_t strategy, size_t step, std::span<const float> logits) {
  if (strategy != 0 && step < dense_.size()) return compare(strategy, step, logits);
  if (strategy != 0) {
    waiting_[{strategy, step}].assign(logits.begin(), logits.end());
    return;
  }
  dense_.emplace_back(logits.begin(), logits.end());
  compare(0, step, logits);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->first.second == step) {
      compare(it->first.first, step, it->second);
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
}

void Predictions::compare(size_t strategy, size_t step, std::span<const float> logits) {
  Sums& sums = sums_[strategy][question_of_[step]];
  ++sums.n;
  if (strategy == 0) {  // itself
    ++sums.agreed;
    return;
  }
  sums.agreed += most_likely(logits) == most_likely(dense_[step]);
  sums.kl += kl_divergence(dense_[step], logits);
}

void Predictions::write(size_t strategy, uint32_t question, AbRecord& record) const {
  const Sums& sums = sums_[strategy][question];
  record.predictions = sums.n;
  record.agreed = sums.agreed;
  record.kl = sums.n ? sums.kl / static_cast<double>(sums.n) : 0;
}

}  // namespace kvasir::tool
