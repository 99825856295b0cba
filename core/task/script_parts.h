// What the scripts of tasks are put together from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/task/statements.h"

namespace kvasir {

inline std::string digits(TaskRandom& random, size_t n) {
  std::string text;
  while (text.size() < n) text += static_cast<char>('0' + random.below(10));
  return text;
}

inline uint32_t draw(TaskRandom& random, const Range& given, const Range& usual) {
  const Range& range = given.given() ? given : usual;
  return random.between(range.first, range.last);
}

// Draws that were not drawn before.
class Unique {
 public:
  template <class Draw>
  std::string operator()(Draw draw_one) {
    for (uint32_t i = 0; i < kMaxTries; ++i) {
      std::string text = draw_one();
      if (seen_.insert(text).second) return text;
    }
    throw input_error("no more different keys can be made: lower --pairs or raise --key-tokens");
  }

 private:
  static constexpr uint32_t kMaxTries = 10000;
  std::unordered_set<std::string> seen_;
};

// `before` + value + `after`, the value's place noted.
inline Statement statement(std::string before, const std::string& value, const std::string& after,
                           int turn) {
  const Span place{before.size(), before.size() + value.size()};
  return {std::move(before) + value + after, place, turn};
}

// "quiet harbor"; sharing one of the two words with `like`, when there is one.
std::string thing_name(TaskRandom& random, const std::string& like);

}  // namespace kvasir
