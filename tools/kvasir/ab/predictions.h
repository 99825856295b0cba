// How far the predictions of strategies are from dense attention's while all are fed the same
// tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tools/kvasir/ab/record.h"

namespace kvasir::tool {

// Of one sample. Strategies are places of a lineup; 0 is dense attention. Logits that come before
// dense attention's of the same step wait for them.
class Predictions {
 public:
  explicit Predictions(size_t n_strategies) : sums_(n_strategies) {}
  void add(size_t strategy, size_t step, std::span<const float> logits);  // [vocab]
  // predictions, agreed and kl of the record.
  void write(size_t strategy, AbRecord& record) const;

 private:
  struct Sums {
    uint64_t n = 0, agreed = 0;
    double kl = 0;
  };
  void compare(size_t strategy, size_t step, std::span<const float> logits);

  std::vector<Sums> sums_;
  std::vector<std::vector<float>> dense_;                            // [steps][vocab]
  std::map<std::pair<size_t, size_t>, std::vector<float>> waiting_;  // of strategy and step
};

}  // namespace kvasir::tool
