// See recall_meter.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_meter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir::tool {
namespace {

constexpr double RecallFigures::*kFigures[] = {&RecallFigures::attended,
                                               &RecallFigures::captured,
                                               &RecallFigures::best,
                                               &RecallFigures::random,
                                               &RecallFigures::random_deviation,
                                               &RecallFigures::needles,
                                               &RecallFigures::top_k,
                                               &RecallFigures::error};

}  // namespace

RecallMeter::RecallMeter(const RecallWorld& world, const RecallTruth& truth, Choice choice)
    : world_(world),
      truth_(truth),
      shape_(world.shape()),
      choice_(choice),
      attended_(shape_.n_kv_heads),
      sums_(shape_.n_layers - 1) {}

void RecallMeter::attended(uint32_t layer, uint32_t kv_head, std::span<const uint32_t> tokens) {
  if (layer != 0) attended_[kv_head].assign(tokens.begin(), tokens.end());
}

void RecallMeter::output(uint32_t layer, uint32_t pos, const float* o) {
  if (pos < shape_.context || layer == 0) return;
  for (uint32_t head = 0; head < shape_.n_q_heads; ++head)
    add_q_head(layer, pos, head, attended_[head / shape_.group()],
               o + size_t{head} * shape_.head_dim);
  if (choice_.scope == RecallScope::kSequence)
    return add_bounds(layer, pos, 0, shape_.n_q_heads, attended_[0].size());
  for (uint32_t head = 0; head < shape_.n_kv_heads; ++head)
    add_bounds(layer, pos, head * shape_.group(), shape_.group(), attended_[head].size());
}

void RecallMeter::add_q_head(uint32_t layer, uint32_t pos, uint32_t q_head,
                             const std::vector<uint32_t>& seen, const float* o) {
  const std::span<const float> mass = truth_.mass(layer, pos, q_head);
  const std::span<const double> want = truth_.output(layer, pos, q_head);
  const auto sees = [&](uint32_t t) { return std::binary_search(seen.begin(), seen.end(), t); };
  double captured = 0, on_needles = 0, of_needles = 0;
  for (const uint32_t t : seen) captured += double{mass[t]};
  for (const uint32_t t : world_.needles()) {
    of_needles += double{mass[t]};
    if (sees(t)) on_needles += double{mass[t]};
  }
  double error = 0, length = 0;
  for (uint32_t d = 0; d < shape_.head_dim; ++d) {
    error += (want[d] - double{o[d]}) * (want[d] - double{o[d]});
    length += want[d] * want[d];
  }
  RecallFigures& sums = sums_[layer - 1].figures;
  sums.attended += static_cast<double>(seen.size());
  sums.captured += captured;
  sums.needles += of_needles > 0 ? on_needles / of_needles : 1.0;
  const std::span<const uint32_t> heaviest = truth_.heaviest(layer, pos, q_head);
  const auto n_found = std::count_if(heaviest.begin(), heaviest.end(), sees);
  sums.top_k +=
      heaviest.empty() ? 1.0 : static_cast<double>(n_found) / static_cast<double>(heaviest.size());
  sums.error += std::sqrt(error / length);
  ++sums_[layer - 1].n;
}

// For the query heads that share one choice of `n_attended` tokens: their masses are summed up per
// unit. Units that sink or window touch are forced; the others are ranked, or drawn without
// replacement, where k of N units with the variance v have a sum of variance k (N - k) / (N - 1) v.
void RecallMeter::add_bounds(uint32_t layer, uint32_t pos, uint32_t first_q_head,
                             uint32_t n_q_heads, size_t n_attended) {
  const size_t n = size_t{pos} + 1, per = choice_.unit_tokens;
  std::vector<double> sum(n);
  for (uint32_t head = first_q_head; head < first_q_head + n_q_heads; ++head) {
    const std::span<const float> mass = truth_.mass(layer, pos, head);
    for (size_t t = 0; t < n; ++t) sum[t] += double{mass[t]};
  }
  double forced = 0;
  size_t n_forced = 0;
  std::vector<double> units;
  for (size_t begin = 0; begin < n; begin += per) {
    const size_t end = std::min(begin + per, n);
    const double of_unit = std::accumulate(sum.begin() + static_cast<ptrdiff_t>(begin),
                                           sum.begin() + static_cast<ptrdiff_t>(end), 0.0);
    if (begin < shape_.sink || end + shape_.window > n) {
      forced += of_unit;
      n_forced += end - begin;
    } else {
      units.push_back(of_unit);
    }
  }
  size_t k = 0;
  if (n_attended > n_forced) k = std::min((n_attended - n_forced + per - 1) / per, units.size());
  RecallFigures& sums = sums_[layer - 1].figures;
  sums.best += forced;
  sums.random += forced;
  if (k == 0) return;
  const auto n_units = static_cast<double>(units.size()), drawn = static_cast<double>(k);
  const double mean = std::accumulate(units.begin(), units.end(), 0.0) / n_units;
  double variance = 0;
  for (const double x : units) variance += (x - mean) * (x - mean) / n_units;
  const auto kth = units.begin() + static_cast<ptrdiff_t>(k);
  if (k < units.size()) std::nth_element(units.begin(), kth, units.end(), std::greater<>());
  sums.best += std::accumulate(units.begin(), kth, 0.0);
  sums.random += drawn * mean;
  if (units.size() > 1)
    sums.random_deviation += std::sqrt(drawn * (n_units - drawn) / (n_units - 1.0) * variance);
}

RecallFigures RecallMeter::mean(const Sums& sums) {
  RecallFigures f = sums.figures;
  for (const auto figure : kFigures) f.*figure /= static_cast<double>(sums.n);
  return f;
}

RecallFigures RecallMeter::figures() const {
  Sums all;
  for (const Sums& of_layer : sums_) {
    for (const auto figure : kFigures) all.figures.*figure += of_layer.figures.*figure;
    all.n += of_layer.n;
  }
  return mean(all);
}

std::vector<RecallFigures> RecallMeter::layer_figures() const {
  std::vector<RecallFigures> out;
  for (const Sums& of_layer : sums_) out.push_back(mean(of_layer));
  return out;
}

}  // namespace kvasir::tool
