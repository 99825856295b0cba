// See recall_world.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/recall_world.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvasir::tool {
namespace {

RopeConfig rope_config(uint32_t head_dim) {
  RopeConfig rope;
  rope.n_dims = head_dim;
  rope.base = 500000.0f;
  return rope;
}

}  // namespace

uint64_t RecallShape::bytes() const {
  const uint64_t n = uint64_t{context} + steps;
  const uint64_t vectors = n * n_layers * (n_q_heads + 2 * uint64_t{n_kv_heads}) * head_dim;
  const uint64_t queries = (n_layers - 1) * uint64_t{steps} * n_q_heads;
  return sizeof(float) * (vectors + queries * n) +
         queries * (sizeof(double) * head_dim + sizeof(uint32_t) * context);
}

RecallWorld::RecallWorld(const RecallShape& shape, uint64_t seed)
    : shape_(shape), rope_(rope_config(shape.head_dim), shape.context + shape.steps) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<uint32_t> place(shape.sink, shape.context - shape.window - 1);
  while (needles_.size() < shape.needles) needles_.insert(place(random));
  const size_t n = size_t{shape.context} + shape.steps;
  layers_.resize(shape.n_layers);
  for (Layer& layer : layers_) {
    layer.k.resize(n * shape.n_kv_heads * shape.head_dim);
    layer.v.resize(layer.k.size());
    layer.q.resize(n * shape.n_q_heads * shape.head_dim);
    fill(layer, random);
  }
}

RopeConfig RecallWorld::rope() const { return rope_config(shape_.head_dim); }

// A needle's logit is what gives all needles the wanted share of the sum. Queries of a group have
// one direction in common and differ from token to token, as in a sentence.
void RecallWorld::fill(Layer& layer, std::mt19937_64& random) const {
  constexpr double kDeviation = 2.0;
  std::normal_distribution<double> normal;
  const uint32_t dim = shape_.head_dim, group = shape_.group();
  const size_t n = size_t{shape_.context} + shape_.steps;
  const double share = shape_.needle_mass / (1.0 - shape_.needle_mass);
  const double needle_logit =
      std::log(share * shape_.context / shape_.needles) + kDeviation * kDeviation / 2.0;
  const double scale = std::sqrt(static_cast<double>(dim));  // |q|: logits are then cos * |k|
  std::vector<double> lean(dim), direction(dim);
  for (uint32_t head = 0; head < shape_.n_kv_heads; ++head) {
    double length = 0;
    for (double& x : lean) {
      x = normal(random);
      length += x * x;
    }
    for (double& x : lean) x /= std::sqrt(length);
    for (size_t t = 0; t < n; ++t) {
      const bool is_needle = needles_.contains(static_cast<uint32_t>(t));
      const double along = is_needle ? needle_logit : kDeviation * normal(random);
      float* k = layer.k.data() + (t * shape_.n_kv_heads + head) * dim;
      float* v = layer.v.data() + (t * shape_.n_kv_heads + head) * dim;
      for (uint32_t d = 0; d < dim; ++d) {
        k[d] = static_cast<float>(along * lean[d] + 0.5 * normal(random));
        v[d] = static_cast<float>(normal(random));
      }
      for (uint32_t g = 0; g < group; ++g) {
        float* q = layer.q.data() + (t * shape_.n_q_heads + size_t{head} * group + g) * dim;
        double norm = 0;
        for (uint32_t d = 0; d < dim; ++d) {
          direction[d] = lean[d] + shape_.drift * normal(random) / scale;
          norm += direction[d] * direction[d];
        }
        for (uint32_t d = 0; d < dim; ++d)
          q[d] = static_cast<float>(direction[d] * scale / std::sqrt(norm));
      }
    }
  }
}

void RecallWorld::project(uint32_t layer, int32_t token, float* q, float* k, float* v) const {
  const auto at = static_cast<uint32_t>(token);
  const Layer& from = layers_[layer];
  turn_back(from.q, shape_.n_q_heads, at, q);
  if (!k) return;
  turn_back(from.k, shape_.n_kv_heads, at, k);
  const size_t width = size_t{shape_.n_kv_heads} * shape_.head_dim;
  std::copy_n(from.v.data() + at * width, width, v);
}

void RecallWorld::turn_back(const std::vector<float>& from, uint32_t heads, uint32_t token,
                            float* to) const {
  const size_t width = size_t{heads} * shape_.head_dim;
  std::copy_n(from.data() + token * width, width, to);
  const int32_t back[] = {-static_cast<int32_t>(token)};
  rope_.shift(to, 1, heads, shape_.head_dim, back, shape_.context);
}

void RecallWorld::attend(uint32_t layer, uint32_t pos, uint32_t q_head, std::span<float> mass,
                         std::span<double> o) const {
  const Layer& from = layers_[layer];
  const uint32_t head = q_head / shape_.group(), dim = shape_.head_dim;
  const float* q = from.q.data() + (size_t{pos} * shape_.n_q_heads + q_head) * dim;
  std::vector<double> weight(size_t{pos} + 1);
  for (uint32_t t = 0; t <= pos; ++t) {
    const float* k = from.k.data() + (size_t{t} * shape_.n_kv_heads + head) * dim;
    double dot = 0;
    for (uint32_t d = 0; d < dim; ++d) dot += double{q[d]} * double{k[d]};
    weight[t] = dot / std::sqrt(static_cast<double>(dim));
  }
  const double high = *std::max_element(weight.begin(), weight.end());
  double sum = 0;
  for (double& x : weight) sum += x = std::exp(x - high);
  std::fill(o.begin(), o.end(), 0.0);
  for (uint32_t t = 0; t <= pos; ++t) {
    weight[t] /= sum;
    mass[t] = static_cast<float>(weight[t]);
    const float* v = from.v.data() + (size_t{t} * shape_.n_kv_heads + head) * dim;
    for (uint32_t d = 0; d < dim; ++d) o[d] += weight[t] * double{v[d]};
  }
}

RecallTruth::RecallTruth(const RecallWorld& world, uint32_t n_heaviest, ThreadPool& pool,
                         const std::function<void()>& between)
    : shape_(world.shape()),
      n_heaviest_(std::min(n_heaviest, shape_.context - shape_.sink - shape_.window)) {
  const size_t n = size_t{shape_.n_layers - 1} * shape_.steps * shape_.n_q_heads;
  const size_t width = size_t{shape_.context} + shape_.steps;
  mass_.resize(n * width);
  output_.resize(n * shape_.head_dim);
  heaviest_.resize(n * n_heaviest_);
  pool.parallel_for(n, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      between();
      const auto q_head = static_cast<uint32_t>(i % shape_.n_q_heads);
      const auto step = static_cast<uint32_t>(i / shape_.n_q_heads % shape_.steps);
      const auto layer = static_cast<uint32_t>(i / shape_.n_q_heads / shape_.steps) + 1;
      const uint32_t pos = shape_.context + step;
      const auto mass = std::span(mass_).subspan(i * width, size_t{pos} + 1);
      world.attend(layer, pos, q_head, mass,
                   std::span(output_).subspan(i * shape_.head_dim, shape_.head_dim));
      std::vector<uint32_t> order(mass.size() - shape_.window - shape_.sink);
      std::iota(order.begin(), order.end(), shape_.sink);
      std::nth_element(order.begin(), order.begin() + n_heaviest_, order.end(),
                       [&](uint32_t a, uint32_t b) { return mass[a] > mass[b]; });
      std::copy_n(order.begin(), n_heaviest_, heaviest_.begin() + i * n_heaviest_);
    }
  });
}

size_t RecallTruth::index(uint32_t layer, uint32_t pos, uint32_t q_head) const {
  return (size_t{layer - 1} * shape_.steps + (pos - shape_.context)) * shape_.n_q_heads + q_head;
}

std::span<const float> RecallTruth::mass(uint32_t layer, uint32_t pos, uint32_t q_head) const {
  const size_t width = size_t{shape_.context} + shape_.steps;
  return std::span(mass_).subspan(index(layer, pos, q_head) * width, size_t{pos} + 1);
}

std::span<const double> RecallTruth::output(uint32_t layer, uint32_t pos, uint32_t q_head) const {
  return std::span(output_).subspan(index(layer, pos, q_head) * shape_.head_dim, shape_.head_dim);
}

std::span<const uint32_t> RecallTruth::heaviest(uint32_t layer, uint32_t pos,
                                                uint32_t q_head) const {
  return std::span(heaviest_).subspan(index(layer, pos, q_head) * n_heaviest_, n_heaviest_);
}

}  // namespace kvasir::tool
