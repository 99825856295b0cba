// What bench select makes of its measurements: series, floors and proposals written by hand.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/select_figures.h"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

namespace {

using kvasir::tool::DepthRatio;
using kvasir::tool::propose_dense_below;
using kvasir::tool::step_floors;
using kvasir::tool::StepFloors;
using kvasir::tool::Typical;
using kvasir::tool::typical;

std::optional<uint32_t> proposed(const std::vector<DepthRatio>& depths) {
  return propose_dense_below(depths);
}

TEST_CASE("select proposal: from the smallest depth on that is faster, as all larger ones are") {
  CHECK(proposed({{1024, 1.2}, {4096, 0.9}, {8192, 0.5}}) == 4096u);
  CHECK(proposed({{1024, 1.2}, {4096, 1.1}, {8192, 0.99}}) == 8192u);
}

TEST_CASE("select proposal: faster everywhere, and nowhere") {
  CHECK(proposed({{1024, 0.9}, {4096, 0.8}}) == 1024u);
  CHECK(proposed({{1024, 0.9}}) == 1024u);
  CHECK(proposed({{1024, 1.5}, {4096, 1.1}}) == std::nullopt);
  CHECK(proposed({{1024, 1.0}}) == std::nullopt);  // as fast is not faster
  CHECK(proposed({}) == std::nullopt);
}

TEST_CASE("select proposal: a depth that is faster counts only when all larger ones are, too") {
  CHECK(proposed({{1024, 0.9}, {2048, 1.1}, {4096, 0.9}, {8192, 0.8}}) == 4096u);
  CHECK(proposed({{1024, 0.5}, {2048, 0.5}, {4096, 1.01}}) == std::nullopt);
}

TEST_CASE("select proposal: where everything is attended the strategy is dense, and not faster") {
  CHECK(proposed({{1024, 0.9, true}, {4096, 0.8, false}}) == 4096u);
  CHECK(proposed({{1024, 0.9, true}, {4096, 0.8, true}}) == std::nullopt);
}

TEST_CASE("select series: the median keeps a step that was disturbed out") {
  const std::vector<double> steps{3, 1, 100, 2, 2};
  CHECK(typical(steps, 0).middle == 2);
  CHECK(typical(steps, 1).middle == 2);
  CHECK(typical(steps, 1).spread == doctest::Approx(0.5));  // 2 to 3
  CHECK(typical(std::vector<double>{4, 2}, 1).middle == 3);
  CHECK(typical(std::vector<double>{7}, 1).middle == 7);
  CHECK(typical({}, 1).middle == 0);
}

TEST_CASE("select series: a strategy that chooses at every fourth step does not hide it") {
  const std::vector<double> steps{8, 0, 0, 0, 8, 0, 0, 0, 80, 0, 0, 0, 8};
  CHECK(typical(steps, 1).middle == 0);
  CHECK(typical(steps, 4).middle == 2);
  CHECK(typical(steps, 64).middle == doctest::Approx(8));  // the mean of what there is
}

TEST_CASE("select floors: bytes by bandwidth, elements and query heads by arithmetic") {
  // 2 MB of two bytes for 4 query heads each: 4 million multiply-adds.
  const StepFloors floors = step_floors({2e6, 8e6, 2, 4}, 1e9, 1e9);
  CHECK(floors.choose_bytes == doctest::Approx(2));
  CHECK(floors.choose_arithmetic == doctest::Approx(4));
  CHECK(floors.choose() == doctest::Approx(4));
  CHECK(floors.attend_bytes == doctest::Approx(8));
  CHECK(step_floors({0, 8e6, 2, 4}, 1e9, 1e9).choose() == 0);
}

}  // namespace
