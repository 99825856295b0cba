// What tells runs apart, told apart itself: a NaN must not pass for equal, wherever it stands.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

#include <cmath>

namespace {
using namespace kvasir;
using namespace kvasir::test;
}  // namespace

TEST_SUITE_BEGIN("core/runtime/support");

TEST_CASE("differences by hand") {
  const Logits want = {{1, -4, 2}, {8, 0, 0}}, got = {{1, -4, 3}, {8, 1, 0}};
  CHECK(max_difference(got[0], want[0]) == 1);
  CHECK(max_difference(got, want) == 1);
  CHECK(relative_difference(got, want) == 0.25);
  CHECK(max_difference(want, want) == 0);
  CHECK(relative_difference(want, want) == 0);
}

TEST_CASE("a NaN on either side stays one, before and behind other numbers") {
  const Logits numbers = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j) {
      CAPTURE(i);
      CAPTURE(j);
      Logits spoilt = numbers;
      spoilt[i][j] = NAN;
      CHECK(std::isnan(max_difference(spoilt[i], numbers[i])));
      for (const auto& [got, want] :
           {std::pair<const Logits&, const Logits&>{spoilt, numbers}, {numbers, spoilt}}) {
        CHECK(std::isnan(max_difference(got, want)));
        CHECK(std::isnan(relative_difference(got, want)));
        CHECK(!(relative_difference(got, want) <= 1e-5));
      }
    }
}
