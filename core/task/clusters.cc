// See clusters.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/clusters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/task/random.h"

namespace kvasir {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % point of the normal distribution

// Of won - lost over contexts.
struct Moments {
  double sum = 0, squares = 0, n_differ = 0;  // contexts in which it is not 0
};

Moments moments_of(const ClusteredPairs& pairs) {
  Moments out;
  for (size_t i = 0; i < pairs.contexts.size(); ++i) {
    const double value = static_cast<double>(i) - static_cast<double>(pairs.n_questions);
    const auto count = static_cast<double>(pairs.contexts[i]);
    out.sum += count * value;
    out.squares += count * value * value;
    if (value != 0) out.n_differ += count;
  }
  return out;
}

// Contexts by |won - lost|, from 1 on.
using Sizes = std::vector<uint64_t>;

// Of W, the sum of the sizes that get the sign +: P(W <= w) for every w. Signs are drawn one
// context after the other.
std::vector<double> tails_of_signs(const Sizes& contexts) {
  std::vector<double> share(1, 1.0);
  for (size_t size = 1; size <= contexts.size(); ++size)
    for (uint64_t i = 0; i < contexts[size - 1]; ++i) {
      share.resize(share.size() + size, 0.0);
      for (size_t w = share.size(); w-- > 0;)
        share[w] = (share[w] + (w >= size ? share[w - size] : 0.0)) / 2;
    }
  for (size_t w = 1; w < share.size(); ++w) share[w] += share[w - 1];
  return share;
}

uint64_t total_of(const Sizes& contexts) {
  uint64_t total = 0;
  for (size_t i = 0; i < contexts.size(); ++i) total += contexts[i] * (i + 1);
  return total;
}

// Of a sum as far from 0: 2 W - total is the sum of the signed sizes.
double two_sided(const std::vector<double>& tails, uint64_t total, uint64_t distance) {
  return distance == 0 ? 1.0 : std::min(1.0, 2 * tails[(total - distance) / 2]);
}

Sizes sizes_of(const std::vector<uint64_t>& contexts, uint32_t n_questions) {
  Sizes out(n_questions);
  for (uint32_t size = 1; size <= n_questions; ++size)
    out[size - 1] = contexts[n_questions - size] + contexts[n_questions + size];
  return out;
}

// How often runs of n contexts, drawn from those that were seen, are found at `level`.
class Power {
 public:
  Power(const ClusteredPairs& seen, double level) : seen_(seen), level_(level) {
    uint64_t sum = 0;
    for (const uint64_t count : seen.contexts) upper_.push_back(sum += count);
  }

  double operator()(uint64_t n) {
    constexpr uint64_t kRuns = 2000;
    uint64_t n_found = 0;
    for (uint64_t run = 0; run < kRuns; ++run) n_found += is_found(draw(n, run));
    return static_cast<double>(n_found) / kRuns;
  }

 private:
  std::vector<uint64_t> draw(uint64_t n, uint64_t run) const {
    TaskRandom random(TaskRandom::state_of(0, n, run));
    std::vector<uint64_t> contexts(upper_.size());
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = random.below(upper_.back());
      ++contexts[static_cast<size_t>(std::upper_bound(upper_.begin(), upper_.end(), at) -
                                     upper_.begin())];
    }
    return contexts;
  }

  bool is_found(const std::vector<uint64_t>& contexts) {
    const Sizes sizes = sizes_of(contexts, seen_.n_questions);
    int64_t sum = 0;
    for (size_t i = 0; i < contexts.size(); ++i)
      sum += static_cast<int64_t>(contexts[i]) *
             (static_cast<int64_t>(i) - static_cast<int64_t>(seen_.n_questions));
    const auto distance = static_cast<uint64_t>(std::abs(sum));
    return distance > 0 && distance >= least_found(sizes);
  }

  // The least distance from 0 that tells; total + 1 where none does.
  uint64_t least_found(const Sizes& sizes) {
    const auto known = least_.find(sizes);
    if (known != least_.end()) return known->second;
    const std::vector<double> tails = tails_of_signs(sizes);
    const uint64_t total = total_of(sizes);
    uint64_t least = total + 1;
    while (least > 1 && two_sided(tails, total, least - 1) <= level_) --least;
    return least_[sizes] = least;
  }

  const ClusteredPairs& seen_;
  double level_;
  std::vector<uint64_t> upper_;  // of contexts seen, running sums
  std::map<Sizes, uint64_t> least_;
};

}  // namespace

void ClusteredShare::add(uint32_t right) {
  ++contexts[right];
  n += n_questions;
  n_right += right;
}

void ClusteredPairs::add(const PairedCounts& context) {
  ++contexts[static_cast<size_t>(n_questions + context.n_won - context.n_lost)];
  pairs.n += context.n;
  pairs.n_lost += context.n_lost;
  pairs.n_won += context.n_won;
}

ClusteredPairs one_question_each(const PairedCounts& pairs) {
  ClusteredPairs out;
  out.contexts = {pairs.n_lost, pairs.n - pairs.n_lost - pairs.n_won, pairs.n_won};
  out.pairs = pairs;
  return out;
}

// With m contexts of Q questions, r of them right in each, N = m Q and p = sum r / N, the design
// effect is
//   (sum (r - Q p)^2 m / (m - 1) + 2 Q) / (N p (1 - p) + 2),   at least 1 and at most Q:
// 2 answers more, all of one context, so that few answers do not show none.
Interval wilson_interval(const ClusteredShare& share) {
  if (share.n == 0) return {};
  const auto n = static_cast<double>(share.n), right = static_cast<double>(share.n_right);
  const double questions = share.n_questions, m = n / questions, p = right / n;
  double squares = 0;
  for (size_t r = 0; r < share.contexts.size(); ++r) {
    const double off = static_cast<double>(r) - questions * p;
    squares += static_cast<double>(share.contexts[r]) * off * off;
  }
  const double between = m > 1 ? squares * m / (m - 1) : squares;
  const double effect =
      std::clamp((between + 2 * questions) / (n * p * (1 - p) + 2), 1.0, questions);
  return wilson_interval_of(p, n / effect);
}

// With m contexts of Q questions and s = won - lost of each:
//   D = sum s / ((m + 2) Q),
//   D -+ z sqrt(V / (m + 2)) / Q,   V = m / (m - 1) (sum s^2 + v) / (m + 2) - (sum s / (m + 2))^2
// which is Agresti and Min's with whole contexts: half of one lost and half of one won, of the
// mean square v, and one without a difference. v would be Q^2 if questions of a context were always
// lost together; it is the mean square of the contexts that differ, and of 8 (Q - 1)^2 that do so.
// That number was found by simulation (tests/core/task/clusters_test.cc).
Interval difference_interval(const ClusteredPairs& pairs) {
  if (pairs.n_questions == 1) return difference_interval(pairs.pairs);
  if (pairs.pairs.n == 0) return {-1, 1};
  const Moments seen = moments_of(pairs);
  const double questions = pairs.n_questions, m = static_cast<double>(pairs.n_contexts());
  const double together = 8 * (questions - 1) * (questions - 1);
  const double v = (seen.squares + together * questions * questions) / (seen.n_differ + together);
  const double mean = seen.sum / (m + 2), corrected = m > 1 ? m / (m - 1) : 1;
  const double variance = std::max(0.0, corrected * (seen.squares + v) / (m + 2) - mean * mean);
  const double half = kZ * std::sqrt(variance / (m + 2)) / questions;
  return {std::max(mean / questions - half, -1.0), std::min(mean / questions + half, 1.0)};
}

double sign_flip_p(const ClusteredPairs& pairs) {
  if (pairs.n_questions == 1) return mcnemar_p(pairs.pairs);
  const Sizes sizes = sizes_of(pairs.contexts, pairs.n_questions);
  const PairedCounts& all = pairs.pairs;
  const uint64_t distance =
      all.n_lost > all.n_won ? all.n_lost - all.n_won : all.n_won - all.n_lost;
  return two_sided(tails_of_signs(sizes), total_of(sizes), distance);
}

std::optional<uint64_t> contexts_to_tell(const ClusteredPairs& pairs, size_t n_comparisons) {
  if (pairs.n_questions == 1) return samples_to_tell(pairs.pairs, n_comparisons);
  const Moments seen = moments_of(pairs);
  if (seen.sum == 0) return std::nullopt;
  const auto m = static_cast<double>(pairs.n_contexts());
  uint64_t least = 1;  // contexts that differ
  while (!can_ever_tell(least, n_comparisons)) ++least;
  const auto rough = static_cast<uint64_t>(
      std::ceil(std::max(samples_to_tell_mean(seen.sum / m, seen.squares / m, n_comparisons),
                         static_cast<double>(least) * m / seen.n_differ)));
  constexpr uint64_t kMostDrawn = 1000;
  if (rough > kMostDrawn) return rough;
  Power power(pairs, kSignificanceLevel / static_cast<double>(n_comparisons));
  uint64_t low = least - 1, high = rough;  // not found often enough; found
  while (power(high) < kAnnouncedPower) {
    low = high;
    high += std::max<uint64_t>(high / 4, 1);
  }
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (power(middle) >= kAnnouncedPower ? high : low) = middle;
  }
  return high;
}

std::vector<Judgement> judge(std::span<const ClusteredPairs> comparisons, double margin) {
  std::vector<double> p;
  for (const ClusteredPairs& pairs : comparisons) p.push_back(sign_flip_p(pairs));
  const std::vector<double> adjusted = holm(p);
  std::vector<Judgement> out;
  for (size_t i = 0; i < p.size(); ++i)
    out.push_back(
        {adjusted[i], verdict(difference_interval(comparisons[i]), comparisons[i].pairs,
                              comparisons[i].n_contexts(), adjusted[i], p.size(), margin)});
  return out;
}

}  // namespace kvasir
