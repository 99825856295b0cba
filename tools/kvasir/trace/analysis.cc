// See analysis.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/analysis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "tools/kvasir/cli/interrupt.h"

namespace kvasir::tool {
namespace {

using Mass = std::vector<float>;  // of the tokens that a query sees

double on(const Mass& mass, size_t begin, size_t end) {
  return std::accumulate(mass.begin() + static_cast<ptrdiff_t>(begin),
                         mass.begin() + static_cast<ptrdiff_t>(end), 0.0);
}

double tokens_of_90(Mass mass) {
  std::sort(mass.begin(), mass.end(), std::greater<>());
  double sum = 0;
  size_t n = 0;
  while (n < mass.size() && sum < 0.9) sum += double{mass[n++]};
  return static_cast<double>(n) / static_cast<double>(mass.size());
}

double below_1_percent(const Mass& mass) {
  const float least = 0.01f * *std::max_element(mass.begin(), mass.end());
  const auto n = std::count_if(mass.begin(), mass.end(), [&](float m) { return m < least; });
  return static_cast<double>(n) / static_cast<double>(mass.size());
}

std::set<uint32_t> heaviest(const Mass& mass) {
  std::vector<uint32_t> order(mass.size());
  std::iota(order.begin(), order.end(), 0);
  const auto n = static_cast<ptrdiff_t>(std::min<size_t>(kHeaviestTokens, order.size()));
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](uint32_t a, uint32_t b) {
    return mass[a] != mass[b] ? mass[a] > mass[b] : a < b;
  });
  return {order.begin(), order.begin() + n};
}

double share_in(const std::set<uint32_t>& of, const std::set<uint32_t>& all) {
  const auto n = std::count_if(of.begin(), of.end(), [&](uint32_t t) { return all.contains(t); });
  return static_cast<double>(n) / static_cast<double>(of.size());
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0.0;
}

// One query head of one layer over all decoded queries.
class HeadAnalysis {
 public:
  HeadAnalysis(const Trace& trace, const TraceWorld& world, const RopeTable& rope, uint32_t layer,
               uint32_t q_head)
      : trace_(trace), world_(world), rope_(rope), layer_(layer), q_head_(q_head) {}

  // Sums over the decoded queries; what is counted between two of them is scaled up to all.
  LayerAnalysis sums() {
    const TraceHeader& h = trace_.header();
    LayerAnalysis sum;
    std::vector<double> accumulated(h.n_tokens());
    std::set<uint32_t> before, earlier;
    double stayed = 0, returned = 0, cosines = 0;
    for (uint32_t step = 0; step < h.steps; ++step) {
      const Mass mass = mass_of(h.context + step);
      sum.first_mass += on(mass, 0, std::min<size_t>(kFirstTokens, mass.size()));
      sum.last_mass +=
          on(mass, mass.size() - std::min<size_t>(kLastTokens, mass.size()), mass.size());
      sum.tokens_of_90 += tokens_of_90(mass);
      sum.below_1_percent += below_1_percent(mass);
      for (size_t t = 0; t < mass.size(); ++t) accumulated[t] += double{mass[t]};
      const std::set<uint32_t> top = heaviest(mass);
      if (step > 0) {
        stayed += share_in(top, before);
        cosines += cosine(head_of(TraceTensor::kQ, h.context + step - 1),
                          head_of(TraceTensor::kQ, h.context + step));
        std::set<uint32_t> fresh;
        std::set_difference(top.begin(), top.end(), before.begin(), before.end(),
                            std::inserter(fresh, fresh.end()));
        if (!fresh.empty())
          returned += share_in(fresh, earlier) * static_cast<double>(fresh.size()) /
                      static_cast<double>(top.size());
      }
      if (trace_.has(TraceTensor::kAhead, layer_)) add_ahead(step, top, sum);
      earlier.insert(before.begin(), before.end());
      before = top;
    }
    if (h.steps > 1) {
      const double per_pair = h.steps / (h.steps - 1.0);
      sum.stayed = stayed * per_pair;
      sum.returned = returned * per_pair;
      sum.query_cosine = cosines * per_pair;
    }
    sum.accumulated_top_5 = top_5(accumulated) * h.steps;
    return sum;
  }

  Mass mass_of(uint32_t pos) const {
    Mass mass(size_t{pos} + 1);
    std::vector<double> o(trace_.header().head_dim);
    world_.attend(layer_, pos, q_head_, mass, o);
    return mass;
  }

 private:
  static double top_5(std::vector<double> accumulated) {
    std::sort(accumulated.begin(), accumulated.end(), std::greater<>());
    const auto n = static_cast<ptrdiff_t>((accumulated.size() + 19) / 20);
    const double all = std::accumulate(accumulated.begin(), accumulated.end(), 0.0);
    return std::accumulate(accumulated.begin(), accumulated.begin() + n, 0.0) / all;
  }

  // What the query head has of a row of queries.
  std::vector<float> head_of(TraceTensor tensor, uint32_t row) const {
    const uint32_t dim = trace_.header().head_dim;
    std::vector<float> all(trace_.row_width(tensor));
    trace_.read_row(tensor, layer_, row, all.data());
    const auto first = all.begin() + static_cast<ptrdiff_t>(uint64_t{q_head_} * dim);
    return std::vector<float>(first, first + dim);
  }

  void add_ahead(uint32_t step, const std::set<uint32_t>& top, LayerAnalysis& sum) const {
    const TraceHeader& h = trace_.header();
    std::vector<float> ahead = head_of(TraceTensor::kAhead, step);
    const uint32_t pos[] = {h.context + step};
    sum.ahead_cosine =
        sum.ahead_cosine.value_or(0.0) + cosine(ahead, head_of(TraceTensor::kQ, pos[0]));
    rope_.apply(ahead.data(), 1, 1, h.head_dim, pos, h.context);
    Mass mass(size_t{pos[0]} + 1);
    world_.attend_with(ahead.data(), layer_, q_head_ / world_.shape().group(), mass);
    sum.ahead_recall = sum.ahead_recall.value_or(0.0) + share_in(top, heaviest(mass));
  }

  const Trace& trace_;
  const TraceWorld& world_;
  const RopeTable& rope_;
  uint32_t layer_, q_head_;
};

double key_outlier(const Trace& trace, uint32_t layer) {
  const uint32_t width = trace.row_width(TraceTensor::kK);
  std::vector<double> mean(width);
  std::vector<float> k(width);
  for (uint32_t t = 0; t < trace.header().n_tokens(); ++t) {
    trace.read_row(TraceTensor::kK, layer, t, k.data());
    for (uint32_t c = 0; c < width; ++c) mean[c] += std::fabs(double{k[c]});
  }
  std::sort(mean.begin(), mean.end());
  const double median = mean[width / 2];
  return median > 0 ? mean.back() / median : 0.0;
}

std::optional<double> input_cosine(const Trace& trace, uint32_t layer) {
  const TraceHeader& h = trace.header();
  if (layer == 0 || h.layers[layer - 1] + 1 != h.layers[layer]) return std::nullopt;
  std::vector<float> before(h.d_model), here(h.d_model);
  double sum = 0;
  for (uint32_t step = 0; step < h.steps; ++step) {
    trace.read_row(TraceTensor::kX, layer - 1, step, before.data());
    trace.read_row(TraceTensor::kX, layer, step, here.data());
    sum += cosine(before, here);
  }
  return sum / h.steps;
}

// fn(sum, figure) of every figure that is a mean over heads and queries.
template <class Fn>
void each_figure(LayerAnalysis& sum, const LayerAnalysis& x, const Fn& fn) {
  constexpr double LayerAnalysis::*kFigures[] = {
      &LayerAnalysis::first_mass, &LayerAnalysis::last_mass, &LayerAnalysis::tokens_of_90,
      &LayerAnalysis::below_1_percent, &LayerAnalysis::accumulated_top_5};
  for (const auto figure : kFigures) fn(sum.*figure, x.*figure);
  constexpr std::optional<double> LayerAnalysis::*kOptional[] = {
      &LayerAnalysis::stayed, &LayerAnalysis::returned, &LayerAnalysis::query_cosine,
      &LayerAnalysis::ahead_cosine, &LayerAnalysis::ahead_recall};
  for (const auto figure : kOptional) {
    if (!(x.*figure)) continue;
    double of_sum = (sum.*figure).value_or(0.0);
    fn(of_sum, *(x.*figure));
    sum.*figure = of_sum;
  }
}

// Queries that are looked at per length: the last ones that see at most so many tokens.
constexpr uint32_t kQueriesPerLength = 4;

std::vector<uint32_t> lengths_of(const TraceHeader& header) {
  std::vector<uint32_t> lengths;
  for (uint32_t n = 256; n <= header.context; n *= 2) lengths.push_back(n);
  return lengths;
}

}  // namespace

TraceAnalysis analyse(const Trace& trace, const std::string& file, ThreadPool& pool) {
  const TraceHeader& h = trace.header();
  const TraceWorld world(trace, 0, 0, pool);
  const RopeTable rope(h.rope, h.n_tokens());
  const std::vector<uint32_t> lengths = lengths_of(h);
  const uint64_t n_heads = h.layers.size() * h.n_q_heads;
  std::vector<LayerAnalysis> of_heads(n_heads);
  std::vector<std::vector<LengthAnalysis>> of_lengths(n_heads);
  pool.parallel_for(n_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      stop_if_interrupted();
      HeadAnalysis head(trace, world, rope, static_cast<uint32_t>(i / h.n_q_heads),
                        static_cast<uint32_t>(i % h.n_q_heads));
      of_heads[i] = head.sums();
      for (const uint32_t n : lengths) {
        LengthAnalysis& at = of_lengths[i].emplace_back();
        for (uint32_t back = 0; back < kQueriesPerLength; ++back) {
          const Mass mass = head.mass_of(n - 1 - back);
          at.tokens_of_90 += tokens_of_90(mass);
          at.below_1_percent += below_1_percent(mass);
        }
      }
    }
  });
  TraceAnalysis out{file, h, {}, {}};
  for (uint32_t layer = 0; layer < h.layers.size(); ++layer) {
    LayerAnalysis& at = out.layers.emplace_back();
    at.layer = h.layers[layer];
    for (uint32_t head = 0; head < h.n_q_heads; ++head)
      each_figure(at, of_heads[uint64_t{layer} * h.n_q_heads + head],
                  [](double& sum, double x) { sum += x; });
    const double n = static_cast<double>(h.n_q_heads) * h.steps;
    each_figure(at, LayerAnalysis(at), [&](double& mean, double) { mean /= n; });
    at.key_outlier = key_outlier(trace, layer);
    at.input_cosine = input_cosine(trace, layer);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    LengthAnalysis& at = out.lengths.emplace_back();
    at.n_tokens = lengths[i];
    for (const auto& of_head : of_lengths) {
      at.tokens_of_90 += of_head[i].tokens_of_90;
      at.below_1_percent += of_head[i].below_1_percent;
    }
    const auto n = static_cast<double>(n_heads * kQueriesPerLength);
    at.tokens_of_90 /= n;
    at.below_1_percent /= n;
  }
  return out;
}

}  // namespace kvasir::tool
