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
  // question_of: by step, from 0 on, ascending; must outlive it.
  Predictions(size_t n_strategies, uint32_t n_questions, const std::vector<uint32_t>& question_of)
      : question_of_(question_of), sums_(n_strategies, std::vector<Sums>(n_questions)) {}
  void add(size_t strategy, size_t step, std::span<const float> logits);  // [vocab]
  // predictions, agreed and kl of the record, of a question from 0 on.
  void write(size_t strategy, uint32_t question, AbRecord& record) const;

 private:
  struct Sums {
    uint64_t n = 0, agreed = 0;
    double kl = 0;
  };
  void compare(size_t strategy, size_t step, std::span<const float> logits);

  const std::vector<uint32_t>& question_of_;
  std::vector<std::vector<Sums>> sums_;                              // [strategies][questions]
  std::vector<std::vector<float>> dense_;                            // [steps][vocab]
  std::map<std::pair<size_t, size_t>, std::vector<float>> waiting_;  // of strategy and step
};

}  // namespace kvasir::tool
