// Settings under which a strategy attends to a wanted number of tokens: strategies made of
// formulas.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace {

using kvasir::tool::Fit;
using kvasir::tool::FitKnob;
using Values = std::vector<double>;

constexpr double kTarget = 592, kTolerance = 16, kAll = 4112, kForced = 80;
const FitKnob kBudget{0, 4096, 512};

struct Outcome {
  Fit fit;
  double attended = 0;
  size_t n_runs = 0;
};

template <class Strategy>
Outcome fit_to(const std::vector<FitKnob>& knobs, const Strategy& strategy) {
  std::map<Values, double> runs;
  Outcome out;
  out.fit = kvasir::tool::fit(
      knobs, [&](const Values& v) { return runs.emplace(v, strategy(v)).first->second; }, kTarget,
      kTolerance);
  out.attended = strategy(out.fit.values);
  out.n_runs = runs.size();
  return out;
}

// Whole heads attend to everything, the others to their budget: `sparsity` is the share of these.
auto heads(int n) {
  return [n](const Values& v) {
    const double streaming = std::round(v[1] * n) / n;
    return (1 - streaming) * kAll + streaming * (kForced + v[0]);
  };
}

TEST_CASE("fit: a budget that is right is left alone") {
  const Outcome out = fit_to({kBudget}, [](const Values& v) { return kForced + v[0] + 12; });
  CHECK(out.fit.reached);
  CHECK(out.fit.values == Values{512});
  CHECK(out.n_runs == 1);
}

TEST_CASE("fit: few runs reach the target from either side") {
  for (const double slope : {0.1, 0.72, 1.0, 3.0})
    for (const double more : {0.0, 17.0, 200.0}) {
      CAPTURE(slope);
      CAPTURE(more);
      const Outcome out = fit_to({kBudget}, [&](const Values& v) {
        return std::min(kAll, kForced + more + slope * v[0]);
      });
      REQUIRE(kForced + more <= kTarget);
      const bool possible = kForced + more + slope * kBudget.high >= kTarget - kTolerance;
      CHECK(out.fit.reached == possible);
      if (possible) CHECK(std::abs(out.attended - kTarget) <= kTolerance);
      CHECK(out.n_runs <= 6);
      CHECK(out.fit.values[0] == std::round(out.fit.values[0]));
    }
}

TEST_CASE("fit: a curve that flattens and jumps to everything at the end") {
  const auto pruned = [](const Values& v) {
    return v[0] >= 4032 ? kAll : kForced + 12.0 * std::sqrt(v[0]);
  };
  const Outcome out = fit_to({kBudget}, pruned);
  CHECK(out.fit.reached);
  CHECK(std::abs(out.attended - kTarget) <= kTolerance);
}

TEST_CASE("fit: where no budget leads there, the start stays") {
  const Outcome few = fit_to({kBudget}, [](const Values& v) { return 90 + std::sqrt(v[0]); });
  CHECK_FALSE(few.fit.reached);
  CHECK(few.fit.values == Values{512});
  const Outcome many = fit_to({kBudget}, [](const Values& v) { return 2000 + v[0] / 10; });
  CHECK_FALSE(many.fit.reached);
  CHECK(many.n_runs <= 3);
  const Outcome jumps = fit_to({kBudget}, [](const Values& v) { return v[0] < 700 ? 149 : kAll; });
  CHECK_FALSE(jumps.fit.reached);
  CHECK(jumps.fit.values == Values{512});
}

TEST_CASE("fit: a share comes near, the budget fills the rest") {
  for (const int n : {8, 12, 16, 64, 256}) {
    CAPTURE(n);
    const Outcome out = fit_to({kBudget, {0, 1, 0.5}}, heads(n));
    CHECK(out.fit.reached);
    CHECK(std::abs(out.attended - kTarget) <= kTolerance);
    const double streaming = std::round(out.fit.values[1] * n);
    CHECK(streaming > 0);
    CHECK(streaming < n);  // all of them streaming would be another strategy
  }
}

TEST_CASE("fit: a share that does the same as an end of its range is no answer") {
  for (const int n : {2, 4, 6}) {
    CAPTURE(n);
    const Outcome out = fit_to({kBudget, {0, 1, 0.5}}, heads(n));
    CHECK_FALSE(out.fit.reached);
    CHECK(out.fit.values == Values{512, 0.5});
  }
}

TEST_CASE("fit: shares may rise or fall, and one that bears on nothing is passed over") {
  const Outcome out = fit_to({{0, 64, 32}, {0, 1, 0.3}, {0, 1, 0.95}}, [](const Values& v) {
    return kForced + v[0] / 8 + 1000 * v[2] * v[2];
  });
  CHECK(out.fit.reached);
  CHECK(out.fit.values[1] == 0.3);
  CHECK(out.fit.values[2] == doctest::Approx(0.71).epsilon(0.05));
}

}  // namespace
