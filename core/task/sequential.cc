// See sequential.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/sequential.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kLevel = 0.05;
constexpr int kHalvings = 60;

struct Counts {
  double lost, won, neither;
  double n() const { return lost + won + neither; }
};

Counts counts_of(const PairedCounts& pairs) {
  return {static_cast<double>(pairs.n_lost), static_cast<double>(pairs.n_won),
          static_cast<double>(pairs.n - pairs.n_lost - pairs.n_won)};
}

double times_log(double count, double p) { return count == 0 ? 0 : count * std::log(p); }

// The largest log likelihood with P(won) - P(lost) = d: over q = P(lost), in which it is concave,
// where won / (q + d) + lost / q = 2 neither / (1 - d - 2 q).
double best_log_likelihood(const Counts& c, double d) {
  double low = std::max(0.0, -d), high = (1 - d) / 2;
  for (int i = 0; i < kHalvings; ++i) {
    const double q = (low + high) / 2;
    const double slope = (c.won > 0 ? c.won / (q + d) : 0) + (c.lost > 0 ? c.lost / q : 0) -
                         (c.neither > 0 ? 2 * c.neither / (1 - d - 2 * q) : 0);
    (slope > 0 ? low : high) = q;
  }
  const double q = (low + high) / 2;
  // At an end of the range rounding may leave a hair below 0.
  const auto positive = [](double p) { return std::max(p, 1e-300); };
  return times_log(c.won, positive(q + d)) + times_log(c.lost, positive(q)) +
         times_log(c.neither, positive(1 - d - 2 * q));
}

// Of Dirichlet(1/2, 1/2, 1/2) and the order seen.
double log_marginal(const Counts& c) {
  const auto part = [](double count) { return std::lgamma(count + 0.5) - std::lgamma(0.5); };
  return std::lgamma(1.5) - std::lgamma(c.n() + 1.5) + part(c.lost) + part(c.won) + part(c.neither);
}

}  // namespace

bool sequence_holds(const PairedCounts& pairs, double level, double difference) {
  const Counts c = counts_of(pairs);
  return pairs.n == 0 || best_log_likelihood(c, difference) > log_marginal(c) + std::log(level);
}

// The best likelihood falls on both sides of the observed difference, which is always inside: there
// it is at least the marginal.
Interval confidence_sequence(const PairedCounts& pairs, double level) {
  if (pairs.n == 0) return {-1, 1};
  const Counts c = counts_of(pairs);
  const double least = log_marginal(c) + std::log(level);
  const auto holds = [&](double d) { return best_log_likelihood(c, d) > least; };
  const double middle = (c.won - c.lost) / c.n();
  const auto end = [&](double outside) {
    if (holds(outside)) return outside;
    double inside = middle;
    for (int i = 0; i < kHalvings; ++i) {
      const double d = (inside + outside) / 2;
      (holds(d) ? inside : outside) = d;
    }
    return outside;
  };
  return {end(-1), end(1)};
}

Verdict watched_verdict(const PairedCounts& pairs, size_t n_comparisons, double margin) {
  const double level = kLevel / static_cast<double>(std::max<size_t>(n_comparisons, 1));
  const Interval interval = confidence_sequence(pairs, level);
  if (margin > 0 && interval.low >= -margin && interval.high <= margin) return Verdict::kEquivalent;
  if (interval.high < 0) return Verdict::kWorse;
  if (interval.low > 0) return Verdict::kBetter;
  return Verdict::kCannotTell;
}

}  // namespace kvasir
