// See sequential.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/sequential.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvasir {
namespace {

constexpr int kHalvings = 60;

// Draws of evenly spaced values, how often each was drawn.
class Draws {
 public:
  Draws(const std::vector<uint64_t>& counts, double low, double high)
      : counts_(counts), low_(low), high_(high) {
    for (const uint64_t count : counts) n_ += static_cast<double>(count);
  }

  bool none() const { return n_ == 0; }
  double mean() const {
    double sum = 0;
    each([&](double count, double value) { sum += count * value; });
    return sum / n_;
  }

  // Whether the best likelihood with this mean is more than `level` of the marginal one.
  bool holds(double mean, double level) const {
    return none() || best_log_likelihood(mean) > log_marginal() + std::log(level);
  }

 private:
  template <class Fn>
  void each(Fn&& fn) const {  // value that was drawn
    const double step = (high_ - low_) / static_cast<double>(counts_.size() - 1);
    for (size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] > 0) fn(static_cast<double>(counts_[i]), low_ + step * static_cast<double>(i));
  }

  // The largest over all distributions of these values with mean d. By Lagrange's multipliers it is
  //   sum c log(c / n) - max over t of sum c log(1 + t (x - d)),
  // with 1 + t (x - d) >= 0 for every value x, drawn or not (Owen 1988, empirical likelihood, with
  // the two ends as values).
  double best_log_likelihood(double d) const {
    double entropy = 0;
    each([&](double count, double) { entropy += count * std::log(count / n_); });
    if (d <= low_ || d >= high_) {  // all the mass lies there
      const uint64_t there = d <= low_ ? counts_.front() : counts_.back();
      return static_cast<double>(there) == n_ ? 0 : -std::numeric_limits<double>::infinity();
    }
    double from = -1 / (high_ - d), to = 1 / (d - low_);
    for (int i = 0; i < kHalvings; ++i) {
      const double t = (from + to) / 2;
      double slope = 0;
      each([&](double count, double x) { slope += count * (x - d) / (1 + t * (x - d)); });
      (slope > 0 ? from : to) = t;
    }
    const double t = (from + to) / 2;
    double most = 0;
    // At an end of the range rounding may leave a hair below 0.
    each([&](double count, double x) {
      most += count * std::log(std::max(1 + t * (x - d), 1e-300));
    });
    return entropy - most;
  }

  // Of Dirichlet(1/2, …) and the order seen.
  double log_marginal() const {
    const double half_of_all = static_cast<double>(counts_.size()) / 2;
    double sum = std::lgamma(half_of_all) - std::lgamma(n_ + half_of_all);
    each([&](double count, double) { sum += std::lgamma(count + 0.5) - std::lgamma(0.5); });
    return sum;
  }

  const std::vector<uint64_t>& counts_;
  double low_, high_, n_ = 0;
};

// The best likelihood falls on both sides of the observed mean, which is always inside: there it is
// at least the marginal.
Interval interval_of(const Draws& draws, double low, double high, double level) {
  if (draws.none()) return {low, high};
  const double middle = draws.mean();
  const auto end = [&](double outside) {
    if (draws.holds(outside, level)) return outside;
    double inside = middle;
    for (int i = 0; i < kHalvings; ++i) {
      const double d = (inside + outside) / 2;
      (draws.holds(d, level) ? inside : outside) = d;
    }
    return outside;
  };
  return {end(low), end(high)};
}

}  // namespace

bool sequence_holds(const ClusteredPairs& pairs, double level, double difference) {
  return Draws(pairs.contexts, -1, 1).holds(difference, level);
}

bool sequence_holds(const ClusteredShare& share, double level, double true_share) {
  return Draws(share.contexts, 0, 1).holds(true_share, level);
}

Interval confidence_sequence(const ClusteredPairs& pairs, double level) {
  return interval_of(Draws(pairs.contexts, -1, 1), -1, 1, level);
}

Interval confidence_sequence(const ClusteredShare& share, double level) {
  return interval_of(Draws(share.contexts, 0, 1), 0, 1, level);
}

Verdict watched_verdict(const ClusteredPairs& pairs, size_t n_comparisons, double margin) {
  const double level = kSignificanceLevel / static_cast<double>(std::max<size_t>(n_comparisons, 1));
  const Interval interval = confidence_sequence(pairs, level);
  if (margin > 0 && interval.low >= -margin && interval.high <= margin) return Verdict::kEquivalent;
  if (interval.high < 0) return Verdict::kWorse;
  if (interval.low > 0) return Verdict::kBetter;
  return Verdict::kCannotTell;
}

}  // namespace kvasir
