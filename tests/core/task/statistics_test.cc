// Intervals and tests against values of others and against sums over every outcome.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/statistics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace {
using namespace kvasir;

double log_choose(uint64_t n, uint64_t k) {
  double out = 0;
  for (uint64_t i = 1; i <= k; ++i)
    out += std::log(static_cast<double>(n - k + i)) - std::log(static_cast<double>(i));
  return out;
}

// Probability that lost and won come out of n samples, each lost or won with these chances.
double probability(const PairedCounts& pairs, double lost, double won) {
  const uint64_t differ = pairs.n_lost + pairs.n_won, same = pairs.n - differ;
  const auto power = [](double base, uint64_t n) {
    return n == 0 ? 0.0 : static_cast<double>(n) * std::log(base);
  };
  return std::exp(log_choose(pairs.n, differ) + log_choose(differ, pairs.n_won) +
                  power(lost, pairs.n_lost) + power(won, pairs.n_won) +
                  power(1 - lost - won, same));
}

// Of what `holds` of the counts: how often that is, summed over all outcomes that matter.
template <class Holds>
double how_often(uint64_t n, double lost, double won, Holds&& holds) {
  double share = 0;
  for (uint64_t l = 0; l <= n; ++l)
    for (uint64_t w = 0; l + w <= n; ++w)
      if (const PairedCounts pairs{n, l, w}; holds(pairs)) share += probability(pairs, lost, won);
  return share;
}

}  // namespace

TEST_SUITE_BEGIN("core/task/statistics");

// Values of Wilson's formula as tables give them.
TEST_CASE("intervals are Wilson's") {
  const auto check = [](uint64_t right, uint64_t n, double low, double high) {
    const Interval interval = wilson_interval(right, n);
    CHECK(interval.low == doctest::Approx(low).epsilon(0.001));
    CHECK(interval.high == doctest::Approx(high).epsilon(0.001));
  };
  check(0, 10, 0.0, 0.2775);
  check(5, 10, 0.2366, 0.7634);
  check(10, 10, 0.7225, 1.0);
  check(190, 200, 0.9104, 0.9726);
  check(0, 0, 0.0, 1.0);
  CHECK(wilson_interval(0, 3).low == 0.0);
  CHECK(wilson_interval(3, 3).high == 1.0);
}

TEST_CASE("McNemar's p is the binomial's, counted outcome by outcome") {
  CHECK(mcnemar_p({100, 0, 0}) == 1.0);
  CHECK(mcnemar_p({100, 5, 5}) == 1.0);
  CHECK(mcnemar_p({100, 6, 0}) == doctest::Approx(2.0 / 64));
  CHECK(mcnemar_p({100, 1, 7}) == doctest::Approx(2.0 * (1 + 8) / 256));
  CHECK(mcnemar_p({100, 7, 1}) == mcnemar_p({100, 1, 7}));
  // statsmodels 0.14: mcnemar([[101, 121], [59, 33]], exact=True), a published example.
  CHECK(mcnemar_p({314, 121, 59}) == doctest::Approx(4.434444926375551e-06).epsilon(1e-9));
  CHECK(mcnemar_p({20000, 9000, 11000}) < 1e-40);
}

TEST_CASE("between equal strategies the test errs in at most one run of twenty") {
  for (const uint64_t n : {10, 30, 100})
    for (const double differ : {0.02, 0.1, 0.4, 1.0}) {
      CAPTURE(n);
      CAPTURE(differ);
      const double errs = how_often(n, differ / 2, differ / 2,
                                    [](const PairedCounts& p) { return mcnemar_p(p) <= 0.05; });
      CHECK(errs <= 0.05);
    }
}

TEST_CASE("the difference's interval covers the truth in 94 to 97 runs of 100") {
  for (const uint64_t n : {30, 100, 300})
    for (const double lost : {0.005, 0.02, 0.1, 0.3, 0.6})
      for (const double won : {0.005, 0.02, 0.1, 0.3}) {
        if (lost + won > 0.95) continue;
        CAPTURE(n);
        CAPTURE(lost);
        CAPTURE(won);
        const double covered = how_often(n, lost, won, [&](const PairedCounts& p) {
          const Interval interval = difference_interval(p);
          return interval.low <= won - lost && won - lost <= interval.high;
        });
        CHECK(covered >= 0.94);
        if (static_cast<double>(n) * (lost + won) >= 10) CHECK(covered <= 0.97);
      }
}

TEST_CASE("binomial tails are sums, and bounds err no more often than asked") {
  for (const uint64_t n : {1u, 7u, 20u})
    for (const double p : {0.0, 0.02, 0.5, 0.9, 1.0}) {
      double sum = 0;
      for (uint64_t k = 0; k <= n; ++k) {
        const double choose = std::exp(log_choose(n, k));
        sum += choose * std::pow(p, static_cast<double>(k)) *
               std::pow(1 - p, static_cast<double>(n - k));
        CHECK(binomial_tail(k, n, p) == doctest::Approx(sum).epsilon(1e-9));
      }
    }
  CHECK(binomial_tail(40000, 100000, 0.5) < 1e-300);
  // P(X <= 15) = 0.0432 and P(X <= 16) = 0.1330 for n = 20, p = 0.9.
  CHECK(least_right(20, 0.9, 0.05) == 16);
  CHECK(least_right(10, 0.9, 0.05) == 7);
  CHECK(least_right(10, 1.0, 0.05) == 10);
  CHECK(least_right(10, 0.0, 0.05) == 0);
}

// Ranks as tables of the sign test's interval give them: n = 10: 2 and 9, 20: 6 and 15, 100:
// 40, 61.
TEST_CASE("the median's interval lies between the ranks of the tables") {
  const auto spread_to = [](int n) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back((i * 7) % n + 1);  // 1 to n, n prime to 7
    return spread_of(values);
  };
  CHECK_FALSE(spread_of({}).median_95);
  CHECK_FALSE(spread_to(5).median_95);
  for (const auto& [n, low, high] : {std::tuple{6, 1, 6}, {10, 2, 9}, {20, 6, 15}, {100, 40, 61}}) {
    const Spread spread = spread_to(n);
    REQUIRE(spread.median_95);
    CHECK(spread.median_95->low == low);
    CHECK(spread.median_95->high == high);
    CHECK(spread.median == doctest::Approx((n + 1) / 2.0));
    CHECK(spread.first_quartile == doctest::Approx(1 + (n - 1) / 4.0));
    CHECK(spread.third_quartile == doctest::Approx(1 + 3 * (n - 1) / 4.0));
  }
  CHECK(spread_of({3, 1, 2}).median == 2);
  CHECK(spread_of({4}).first_quartile == 4);
}

TEST_CASE("Holm's p, in the order given") {
  CHECK(holm({}).empty());
  const double one[] = {0.03};
  CHECK(holm(one) == std::vector<double>{0.03});
  // R 4.3: p.adjust(c(0.01, 0.04, 0.03, 0.005, 0.9), "holm")
  const double five[] = {0.01, 0.04, 0.03, 0.005, 0.9};
  const double want[] = {0.04, 0.09, 0.09, 0.025, 0.9};
  const std::vector<double> got = holm(five);
  for (size_t i = 0; i < 5; ++i) CHECK(got[i] == doctest::Approx(want[i]));
  const double large[] = {0.6, 0.7};
  CHECK(holm(large) == std::vector<double>{1.0, 1.0});
}

TEST_CASE("the samples asked for find the difference in four runs of five") {
  CHECK_FALSE(samples_to_tell({100, 4, 4}, 1));
  CHECK_FALSE(samples_to_tell({100, 0, 0}, 1));
  CHECK(samples_to_tell({5, 5, 0}, 1) == 6);  // what can_ever_tell() asks for
  CHECK(samples_to_tell({5, 0, 5}, 8) == 9);
  for (const PairedCounts& seen : {PairedCounts{100, 30, 10}, {100, 12, 4}, {50, 4, 10}})
    for (const size_t n_comparisons : {1u, 8u, 34u}) {
      const uint64_t n = samples_to_tell(seen, n_comparisons).value();
      CAPTURE(n);
      const auto count = static_cast<double>(seen.n);
      const double found =
          how_often(n, static_cast<double>(seen.n_lost) / count,
                    static_cast<double>(seen.n_won) / count, [&](const PairedCounts& p) {
                      return mcnemar_p(p) * static_cast<double>(n_comparisons) <= 0.05;
                    });
      CHECK(found >= 0.8);
      CHECK(found < 0.83);
    }
}

// What Holm's rule says of each comparison, from its definition: sorted by p, the k-th of m is
// rejected when it and all before it are at most 5 % / (m - k + 1).
TEST_CASE("comparisons judged together reject what Holm's rule rejects") {
  const std::vector<PairedCounts> all = {{100, 9, 0},  {100, 0, 0},  {100, 3, 9},
                                         {100, 2, 14}, {100, 30, 5}, {4, 4, 0}};
  const std::vector<Judgement> judged = judge(all, 0);
  REQUIRE(judged.size() == all.size());
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5};
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return mcnemar_p(all[a]) < mcnemar_p(all[b]); });
  bool rejects = true;
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t i = order[k];
    rejects = rejects && mcnemar_p(all[i]) <= 0.05 / static_cast<double>(order.size() - k);
    const bool told = judged[i].verdict == Verdict::kWorse || judged[i].verdict == Verdict::kBetter;
    CHECK(told == rejects);
    CHECK((judged[i].verdict == Verdict::kWorse) == (rejects && all[i].n_lost > all[i].n_won));
  }
  CHECK(judged[5].verdict == Verdict::kNeverTell);
  CHECK(judge(std::span<const PairedCounts>{}, 0).empty());
}

// Ten arms, dense attention's equals, but for answers that flip at random: in at most one run of
// twenty is any of them called better or worse.
TEST_CASE("of arms that are no better, one is called so in at most 5 % of the runs") {
  std::mt19937_64 random(7);
  for (const uint64_t n : {30u, 100u, 300u}) {
    uint64_t n_wrong = 0;
    constexpr uint64_t kRuns = 1000;
    for (uint64_t run = 0; run < kRuns; ++run) {
      std::vector<PairedCounts> arms(10, PairedCounts{n, 0, 0});
      for (PairedCounts& arm : arms)
        for (uint64_t i = 0; i < n; ++i) {
          const uint64_t draw = random() % 10;
          arm.n_lost += draw == 0;
          arm.n_won += draw == 1;
        }
      bool any = false;
      for (const Judgement& j : judge(arms, 0))
        any = any || j.verdict == Verdict::kBetter || j.verdict == Verdict::kWorse;
      n_wrong += any;
    }
    CHECK(n_wrong <= kRuns * 7 / 100);  // 5 % and three standard deviations
  }
}

TEST_CASE("verdicts") {
  const auto says = [](const PairedCounts& pairs, size_t n_comparisons = 1, double margin = 0) {
    const double p = mcnemar_p(pairs);
    const std::vector<double> all(n_comparisons, p);
    return std::string(name(verdict(pairs, holm(all)[0], n_comparisons, margin)));
  };
  CHECK(says({100, 0, 0}) == "same");
  CHECK(says({100, 6, 0}) == "worse");
  CHECK(says({100, 5, 0}) == "cannot tell");
  CHECK(says({100, 0, 6}) == "better");
  CHECK(says({100, 6, 0}, 2) == "cannot tell");
  CHECK(says({100, 8, 0}, 2) == "worse");
  CHECK(says({5, 5, 0}) == "could never tell");
  CHECK(says({6, 5, 0}) == "cannot tell");
  CHECK(says({6, 6, 0}) == "worse");
  CHECK(says({6, 5, 0}, 2) == "could never tell");
  CHECK(says({200, 1, 1}, 1, 0.05) == "equivalent");
  CHECK(says({200, 0, 0}, 1, 0.05) == "equivalent");
  CHECK(says({10, 0, 0}, 1, 0.05) == "same");  // too few to say so
  CHECK(says({1000, 10, 0}, 1, 0.05) == "equivalent");
  CHECK(says({1000, 10, 0}) == "worse");
}
