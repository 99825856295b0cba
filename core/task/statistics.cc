// See statistics.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir {
namespace {

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

double mean(std::span<const double> values) {
  return values.empty() ? 0.0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

// The least and the largest value but k of n, k the most for which P(Bin(n, 1/2) < k) <= 2.5 %.
Spread spread_of(std::vector<double> values) {
  Spread out;
  out.n = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {  // linear between values
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const double above = values[std::min(below + 1, values.size() - 1)];
    return values[below] + (place - static_cast<double>(below)) * (above - values[below]);
  };
  out.median = at(0.5);
  out.first_quartile = at(0.25);
  out.third_quartile = at(0.75);
  size_t k = 0;
  while (2 * (k + 1) <= out.n && binomial_tail(k, out.n, 0.5) <= kSignificanceLevel / 2) ++k;
  if (k > 0) out.median_95 = Interval{values[k - 1], values[out.n - k]};
  return out;
}

Interval wilson_interval(uint64_t n_right, uint64_t n) {
  const auto count = static_cast<double>(n);
  return n == 0 ? Interval{} : wilson_interval_of(static_cast<double>(n_right) / count, count);
}

// With p the share and z the 97.5 % point of the normal distribution:
//   (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
Interval wilson_interval_of(double share, double n) {
  const double middle = share + kZ * kZ / (2 * n);
  const double half = kZ * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  const double scale = 1 + kZ * kZ / n;
  // At the ends the two terms cancel but for rounding.
  return {share <= 0 ? 0.0 : (middle - half) / scale, share >= 1 ? 1.0 : (middle + half) / scale};
}

Interval difference_interval(const PairedCounts& pairs) {
  const double n = static_cast<double>(pairs.n) + 2;
  const double lost = static_cast<double>(pairs.n_lost) + 0.5;
  const double won = static_cast<double>(pairs.n_won) + 0.5;
  const double middle = (won - lost) / n;
  const double half = kZ * std::sqrt(lost + won - (won - lost) * (won - lost) / n) / n;
  return {std::max(middle - half, -1.0), std::min(middle + half, 1.0)};
}

// Summed from the largest term down, which ends where terms no longer count.
double binomial_tail(uint64_t most, uint64_t n, double p) {
  if (most >= n) return 1;
  if (p <= 0) return 1;
  if (p >= 1) return 0;
  const auto count = static_cast<double>(n);
  const auto peak = static_cast<uint64_t>(std::min(static_cast<double>(most), count * p));
  const auto term = [&](uint64_t i) {
    const auto k = static_cast<double>(i);
    return std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1) +
                    k * std::log(p) + (count - k) * std::log1p(-p));
  };
  constexpr double kNegligible = 1e-17;
  double tail = 0;
  for (uint64_t i = peak + 1; i-- > 0;) {
    const double added = term(i);
    tail += added;
    if (added < kNegligible * tail) break;
  }
  for (uint64_t i = peak + 1; i <= most; ++i) {
    const double added = term(i);
    tail += added;
    if (added < kNegligible * tail) break;
  }
  return std::min(tail, 1.0);
}

uint64_t least_right(uint64_t n, double share, double error_rate) {
  uint64_t least = 0;
  while (least < n && binomial_tail(least, n, share) <= error_rate) ++least;
  return least;
}

double mcnemar_p(const PairedCounts& pairs) {
  const uint64_t differ = pairs.n_lost + pairs.n_won;
  return std::min(1.0, 2 * binomial_tail(std::min(pairs.n_lost, pairs.n_won), differ, 0.5));
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

// How often McNemar's test at `level` finds what is lost and won with these chances in n samples:
// over the pairs that differ, binomial, and those of them that are lost, binomial.
static double power(uint64_t n, double lost, double won, double level) {
  const double differ = lost + won, share = lost / differ;
  double found = 0;
  uint64_t fewest = 0;  // of the rarer kind with which so many pairs still tell, and one more
  for (uint64_t m = 1; m <= n; ++m) {
    while (mcnemar_p({m, fewest, m - fewest}) <= level && 2 * fewest <= m) ++fewest;
    while (fewest > 0 && mcnemar_p({m, fewest - 1, m - fewest + 1}) > level) --fewest;
    const double chance = binomial_tail(m, n, differ) - binomial_tail(m - 1, n, differ);
    if (fewest > 0 && chance > 1e-9)
      found +=
          chance * (binomial_tail(fewest - 1, m, share) + binomial_tail(fewest - 1, m, 1 - share));
  }
  return found;
}

// With d = mean_square and D = mean, for pairs the share that differs and the difference of shares:
//   (z(1 - level / 2) sqrt(d) + z(power) sqrt(d - D^2))^2 / D^2
double samples_to_tell_mean(double mean, double mean_square, size_t n_comparisons) {
  const double level = kSignificanceLevel / static_cast<double>(n_comparisons);
  const double root = normal_point(level / 2) * std::sqrt(mean_square) +
                      kPowerZ * std::sqrt(std::max(0.0, mean_square - mean * mean));
  return root * root / (mean * mean);
}

// The normal approximation is the test's without its steps: so many pairs must differ that it can
// tell at all. From there the exact power decides, where it is quickly computed.
std::optional<uint64_t> samples_to_tell(const PairedCounts& pairs, size_t n_comparisons) {
  if (pairs.n_lost == pairs.n_won) return std::nullopt;
  const double level = kSignificanceLevel / static_cast<double>(n_comparisons);
  const auto n = static_cast<double>(pairs.n);
  const double lost = static_cast<double>(pairs.n_lost) / n;
  const double won = static_cast<double>(pairs.n_won) / n;
  const double differ = lost + won;
  uint64_t least = 1;  // pairs that differ
  while (!can_ever_tell(least, n_comparisons)) ++least;
  auto samples = static_cast<uint64_t>(
      std::ceil(std::max(samples_to_tell_mean(won - lost, differ, n_comparisons),
                         static_cast<double>(least) / differ)));
  constexpr uint64_t kMostExact = 1000;
  const auto found = [&](uint64_t of) { return power(of, lost, won, level); };
  while (samples <= kMostExact && found(samples) < kAnnouncedPower) ++samples;
  while (samples <= kMostExact && samples > least && found(samples - 1) >= kAnnouncedPower)
    --samples;
  return samples;
}

bool can_ever_tell(uint64_t n, size_t n_comparisons) {
  return mcnemar_p({n, n, 0}) * static_cast<double>(n_comparisons) <= kSignificanceLevel;
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
  return verdict(difference_interval(pairs), pairs, pairs.n, p, n_comparisons, margin);
}

Verdict verdict(const Interval& difference, const PairedCounts& pairs, uint64_t n_drawn, double p,
                size_t n_comparisons, double margin) {
  if (difference.low >= -margin && difference.high <= margin) return Verdict::kEquivalent;
  if (p <= kSignificanceLevel)
    return pairs.n_lost > pairs.n_won ? Verdict::kWorse : Verdict::kBetter;
  if (!can_ever_tell(n_drawn, n_comparisons)) return Verdict::kNeverTell;
  return pairs.n_lost + pairs.n_won == 0 ? Verdict::kSame : Verdict::kCannotTell;
}

std::vector<Judgement> judge(std::span<const PairedCounts> comparisons, double margin) {
  std::vector<double> p;
  for (const PairedCounts& pairs : comparisons) p.push_back(mcnemar_p(pairs));
  const std::vector<double> adjusted = holm(p);
  std::vector<Judgement> out;
  for (size_t i = 0; i < p.size(); ++i)
    out.push_back({adjusted[i], verdict(comparisons[i], adjusted[i], p.size(), margin)});
  return out;
}

}  // namespace kvasir
