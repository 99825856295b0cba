// See deviation.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/blend/deviation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir {
namespace {

// Adds |a_j - b_j| / rms(|a|) of each of the n rows.
void add_distances(const float* a, const float* b, size_t n, size_t width,
                   std::vector<double>& out) {
  std::vector<double> distance(n);
  double squares = 0;
  for (size_t j = 0; j < n; ++j) {
    double apart = 0;
    for (size_t i = j * width; i < (j + 1) * width; ++i) {
      const double difference = double{a[i]} - double{b[i]};
      apart += difference * difference;
      squares += double{a[i]} * double{a[i]};
    }
    distance[j] = std::sqrt(apart);
  }
  const double rms = n > 0 && squares > 0 ? std::sqrt(squares / static_cast<double>(n)) : 1.0;
  for (size_t j = 0; j < n; ++j) out[j] += distance[j] / rms;
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> rank(values.size());
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i)
      rank[order[i]] = 0.5 * static_cast<double>(begin + end - 1);
  }
  return rank;
}

}  // namespace

std::vector<double> kv_deviation(const KvRows& fresh, const KvRows& reused, size_t n,
                                 size_t k_width, size_t v_width) {
  std::vector<double> out(n);
  add_distances(fresh.k, reused.k, n, k_width, out);
  add_distances(fresh.v, reused.v, n, v_width, out);
  return out;
}

std::vector<uint32_t> keep_highest(std::span<const uint32_t> positions,
                                   std::span<const double> scores, size_t n_keep) {
  std::vector<size_t> order(positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  n_keep = std::min(n_keep, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<ptrdiff_t>(n_keep), order.end(),
      [&](size_t a, size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  order.resize(n_keep);
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> kept;
  kept.reserve(n_keep);
  for (const size_t i : order) kept.push_back(positions[i]);
  return kept;
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = 0.5 * (static_cast<double>(x.size()) - 1.0);
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

}  // namespace kvasir
