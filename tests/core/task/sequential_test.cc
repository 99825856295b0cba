// Confidence sequences and verdicts on simulated runs, with fixed seeds. What is asked of a share
// of runs is met or missed by binomial chance: bounds say how often a right implementation would
// fail.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/sequential.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/task/random.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;

struct Chances {
  double lost, won;
  double difference() const { return won - lost; }
};

bool holds(const PairedCounts& pairs, double level, double difference) {
  return sequence_holds(one_question_each(pairs), level, difference);
}
Interval interval_of(const PairedCounts& pairs, double level) {
  return confidence_sequence(one_question_each(pairs), level);
}
Verdict watched(const PairedCounts& pairs, size_t n_comparisons, double margin) {
  return watched_verdict(one_question_each(pairs), n_comparisons, margin);
}

void draw(PairedCounts& pairs, const Chances& chances, TaskRandom& random) {
  const double u = random.unit();
  ++pairs.n;
  pairs.n_lost += u < chances.lost;
  pairs.n_won += u >= chances.lost && u < chances.lost + chances.won;
}

// By brute force: the best likelihood over a grid of distributions with difference d.
double best_on_grid(const PairedCounts& pairs, double d) {
  double best = -1e300;
  const auto part = [](uint64_t n, double p) {
    return n == 0 ? 0.0 : static_cast<double>(n) * std::log(p);
  };
  for (double q = std::max(0.0, -d); 2 * q + d <= 1; q += 1e-4) {
    const double value = part(pairs.n_lost, q) + part(pairs.n_won, q + d) +
                         part(pairs.n - pairs.n_lost - pairs.n_won, 1 - d - 2 * q);
    if (!std::isnan(value)) best = std::max(best, value);
  }
  return best;
}

TEST_SUITE_BEGIN("core/task/sequential");

TEST_CASE("the sequence holds the differences whose best likelihood is near the marginal") {
  for (const PairedCounts& pairs : {PairedCounts{20, 6, 1}, {50, 0, 3}, {12, 12, 0}, {40, 5, 5}}) {
    CAPTURE(pairs.n_lost);
    // The marginal as a product of predictions: (count so far + 1/2) / (samples so far + 3/2).
    double marginal = 0, seen = 0;
    for (const uint64_t count : {pairs.n_lost, pairs.n_won, pairs.n - pairs.n_lost - pairs.n_won})
      for (uint64_t i = 0; i < count; ++i)
        marginal += std::log((static_cast<double>(i) + 0.5) / (seen++ + 1.5));
    const Interval interval = interval_of(pairs, 0.05);
    for (double d = -0.995; d < 1; d += 0.05)
      CHECK(holds(pairs, 0.05, d) == (interval.low < d && d < interval.high));
    for (const auto& [end, inward] : {std::pair{interval.low, 1e-2}, {interval.high, -1e-2}}) {
      CHECK(best_on_grid(pairs, end + inward) > marginal + std::log(0.05) - 1e-3);
      if (std::abs(end) < 1 - 1e-2)
        CHECK(best_on_grid(pairs, end - inward) < marginal + std::log(0.05) + 1e-3);
    }
  }
  CHECK(interval_of({}, 0.05).low == -1);
  CHECK(interval_of({}, 0.05).high == 1);
}

TEST_CASE("swapping the strategies mirrors the interval, and a smaller level widens it") {
  const PairedCounts pairs{37, 9, 2}, swapped{37, 2, 9};
  const Interval a = interval_of(pairs, 0.05), b = interval_of(swapped, 0.05);
  CHECK(a.low == doctest::Approx(-b.high));
  CHECK(a.high == doctest::Approx(-b.low));
  const Interval wide = interval_of(pairs, 0.001);
  CHECK(wide.low < a.low);
  CHECK(wide.high > a.high);
}

// 10,000 runs of 300 samples, looked at after every sample: at 5 %, 500 would err; 4 standard
// deviations above are 587, which chance passes once in 30,000 times.
TEST_CASE("at most 5 % of watched runs ever leave out the true difference") {
  const int n_runs = test::few_cases() ? 300 : 10000;
  const int most = n_runs == 300 ? 30 : 500;
  for (const Chances& chances : {Chances{0.05, 0.05}, {0.3, 0.1}}) {
    int n_wrong = 0;
    for (int run = 0; run < n_runs; ++run) {
      TaskRandom random(TaskRandom::state_of(11, 0, static_cast<uint64_t>(run)));
      PairedCounts pairs;
      for (bool wrong = false; pairs.n < 300 && !wrong;) {
        draw(pairs, chances, random);
        wrong = !holds(pairs, 0.05, chances.difference());
        n_wrong += wrong;
      }
    }
    MESSAGE("difference " << chances.difference() << ": " << n_wrong << " of " << n_runs
                          << " watched runs left it out");
    CHECK(n_wrong <= most);
  }
}

// Two questions about each context, of which one draw often decides both; looked at after every
// context. What is watched in a report besides are shares of right answers.
TEST_CASE("at most 5 % of watched runs leave out the truth where contexts have several questions") {
  const int n_runs = test::few_cases() ? 300 : 10000;
  const int most = n_runs == 300 ? 30 : 500;
  const Chances chances{0.25, 0.1};
  int n_wrong = 0, n_wrong_share = 0;
  for (int run = 0; run < n_runs; ++run) {
    TaskRandom random(TaskRandom::state_of(12, 0, static_cast<uint64_t>(run)));
    ClusteredPairs pairs(2);
    ClusteredShare share(2);
    bool wrong = false, wrong_share = false;
    for (int i = 0; i < 150; ++i) {
      PairedCounts context;
      draw(context, chances, random);
      if (random.unit() < 0.8)
        context = {2, 2 * context.n_lost, 2 * context.n_won};
      else
        draw(context, chances, random);
      pairs.add(context);
      share.add(static_cast<uint32_t>(context.n_won));
      wrong = wrong || !sequence_holds(pairs, 0.05, chances.difference());
      wrong_share = wrong_share || !sequence_holds(share, 0.05, chances.won);
    }
    n_wrong += wrong;
    n_wrong_share += wrong_share;
  }
  MESSAGE(n_wrong << " of " << n_runs << " watched runs left the difference out, " << n_wrong_share
                  << " the share");
  CHECK(n_wrong <= most);
  CHECK(n_wrong_share <= most);
}

TEST_CASE("a watched share is Bernoulli's, whose likelihood is known in closed form") {
  ClusteredShare share;
  for (int i = 0; i < 40; ++i) share.add(i < 31);
  const auto log_likelihood = [](double p) { return 31 * std::log(p) + 9 * std::log(1 - p); };
  double marginal = 0;  // Krichevsky and Trofimov's estimator, prediction by prediction
  for (int i = 0; i < 31; ++i) marginal += std::log((i + 0.5) / (i + 1.0));
  for (int i = 0; i < 9; ++i) marginal += std::log((i + 0.5) / (31 + i + 1.0));
  const Interval interval = confidence_sequence(share, 0.05);
  for (const double end : {interval.low, interval.high})
    CHECK(log_likelihood(end) == doctest::Approx(marginal + std::log(0.05)).epsilon(1e-6));
  CHECK(confidence_sequence(ClusteredShare(2), 0.05).low == 0);
}

TEST_CASE("identical arms are never better or worse, however long one watches") {
  PairedCounts pairs;
  for (pairs.n = 1; pairs.n <= 5000; ++pairs.n) {
    const Verdict verdict = watched(pairs, 1, 0);
    CHECK(verdict == Verdict::kCannotTell);
  }
  pairs.n = 400;
  CHECK(watched(pairs, 1, 0.05) == Verdict::kEquivalent);
}

TEST_CASE("an arm that always fails is worse after few samples, among many comparisons, too") {
  const auto samples_until = [](size_t n_comparisons) {
    PairedCounts pairs;
    while (watched(pairs, n_comparisons, 0) != Verdict::kWorse) {
      ++pairs.n;
      ++pairs.n_lost;
      REQUIRE(pairs.n < 100);
    }
    return pairs.n;
  };
  CHECK(samples_until(1) <= 10);
  CHECK(samples_until(16) <= 15);
  CHECK(watched({20, 0, 20}, 1, 0) == Verdict::kBetter);
}

TEST_SUITE_END();

}  // namespace
