// See statistics.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir {
namespace {

constexpr double kLevel = 0.05;
constexpr double kZ = 1.959963984540054;       // 97.5 % point of the normal distribution
constexpr double kPowerZ = 0.841621233572914;  // 80 % point

// The point above which a share of `upper` of the normal distribution lies.
double normal_point(double upper) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > upper ? low : high) = middle;
  }
  return low;
}

}  // namespace

// With p = n_right / n and z the 97.5 % point of the normal distribution:
//   (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
Interval wilson_interval(uint64_t n_right, uint64_t n) {
  if (n == 0) return {};
  const auto count = static_cast<double>(n);
  const double p = static_cast<double>(n_right) / count;
  const double middle = p + kZ * kZ / (2 * count);
  const double half = kZ * std::sqrt(p * (1 - p) / count + kZ * kZ / (4 * count * count));
  const double scale = 1 + kZ * kZ / count;
  // At the ends the two terms cancel but for rounding.
  return {n_right == 0 ? 0.0 : (middle - half) / scale,
          n_right == n ? 1.0 : (middle + half) / scale};
}

Interval difference_interval(const PairedCounts& pairs) {
  const double n = static_cast<double>(pairs.n) + 2;
  const double lost = static_cast<double>(pairs.n_lost) + 0.5;
  const double won = static_cast<double>(pairs.n_won) + 0.5;
  const double middle = (won - lost) / n;
  const double half = kZ * std::sqrt(lost + won - (won - lost) * (won - lost) / n) / n;
  return {std::max(middle - half, -1.0), std::min(middle + half, 1.0)};
}

// Twice the binomial's tail: the sum over i <= min of C(differ, i) / 2^differ.
double mcnemar_p(const PairedCounts& pairs) {
  const uint64_t differ = pairs.n_lost + pairs.n_won;
  const uint64_t fewer = std::min(pairs.n_lost, pairs.n_won);
  const auto m = static_cast<double>(differ);
  double tail = 0;
  for (uint64_t i = 0; i <= fewer; ++i) {
    const auto k = static_cast<double>(i);
    tail += std::exp(std::lgamma(m + 1) - std::lgamma(k + 1) - std::lgamma(m - k + 1) -
                     m * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> out(p.size());
  double least = 0;  // a smaller p must not come out larger than the next
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double scaled = p[order[rank]] * static_cast<double>(p.size() - rank);
    least = std::max(least, std::min(1.0, scaled));
    out[order[rank]] = least;
  }
  return out;
}

// With d the share of pairs that differ and D the difference of shares:
//   (z(1 - level / 2) sqrt(d) + z(power) sqrt(d - D^2))^2 / D^2
// But that is the test's without its steps: so many pairs must differ that it can tell at all.
std::optional<uint64_t> samples_to_tell(const PairedCounts& pairs, size_t n_comparisons) {
  if (pairs.n_lost == pairs.n_won) return std::nullopt;
  const double level = kLevel / static_cast<double>(n_comparisons);
  const auto n = static_cast<double>(pairs.n);
  const auto lost = static_cast<double>(pairs.n_lost), won = static_cast<double>(pairs.n_won);
  const double differ = (lost + won) / n, difference = (won - lost) / n;
  const double root = normal_point(level / 2) * std::sqrt(differ) +
                      kPowerZ * std::sqrt(std::max(0.0, differ - difference * difference));
  uint64_t least = 1;  // pairs that differ
  while (!can_ever_tell(least, n_comparisons)) ++least;
  return static_cast<uint64_t>(std::ceil(
      std::max(root * root / (difference * difference), static_cast<double>(least) / differ)));
}

bool can_ever_tell(uint64_t n, size_t n_comparisons) {
  return mcnemar_p({n, n, 0}) * static_cast<double>(n_comparisons) <= kLevel;
}

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kWorse:
      return "worse";
    case Verdict::kBetter:
      return "better";
    case Verdict::kEquivalent:
      return "equivalent";
    case Verdict::kCannotTell:
      return "cannot tell";
    case Verdict::kNeverTell:
      return "could never tell";
  }
  return "";
}

Verdict verdict(const PairedCounts& pairs, double p, size_t n_comparisons, double margin) {
  const Interval interval = difference_interval(pairs);
  if (interval.low >= -margin && interval.high <= margin) return Verdict::kEquivalent;
  if (p <= kLevel) return pairs.n_lost > pairs.n_won ? Verdict::kWorse : Verdict::kBetter;
  if (pairs.n_lost + pairs.n_won == 0) return Verdict::kSame;
  return can_ever_tell(pairs.n, n_comparisons) ? Verdict::kCannotTell : Verdict::kNeverTell;
}

}  // namespace kvasir
