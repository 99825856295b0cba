// See recall_world.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_world.h"

#include <algorithm>
#include <numeric>

#include "kernels/attention_f64.h"

namespace kvasir::tool {

uint64_t RecallShape::bytes() const {
  const uint64_t n = uint64_t{context} + steps;
  const uint64_t vectors = n * n_layers * (n_q_heads + 2 * uint64_t{n_kv_heads}) * head_dim;
  const uint64_t queries = (n_layers - 1) * uint64_t{steps} * n_q_heads;
  return sizeof(float) * (vectors + queries * n) +
         queries * (sizeof(double) * head_dim + sizeof(uint32_t) * context);
}

RecallWorld::RecallWorld(const RecallShape& shape, double softmax_scale)
    : shape_(shape), softmax_scale_(softmax_scale), layers_(shape.n_layers) {
  for (Layer& layer : layers_) {
    layer.k.resize(uint64_t{shape.n_tokens()} * shape.n_kv_heads * shape.head_dim);
    layer.v.resize(layer.k.size());
    layer.q.resize(uint64_t{shape.n_tokens()} * shape.n_q_heads * shape.head_dim);
  }
}

std::vector<double> RecallWorld::weights(const float* q, uint32_t layer, uint32_t kv_head,
                                         size_t n) const {
  const uint32_t dim = shape_.head_dim;
  const float* k = layers_[layer].k.data() + uint64_t{kv_head} * dim;
  std::vector<double> weight(n);
  kernels::dots_f64(q, 1, k, n, uint64_t{shape_.n_kv_heads} * dim, dim, weight.data(), n);
  for (double& x : weight) x *= softmax_scale_;
  const double sum = kernels::softmax_weights_f64(weight.data(), n);
  for (double& x : weight) x /= sum;
  return weight;
}

void RecallWorld::attend(uint32_t layer, uint32_t pos, uint32_t q_head, std::span<float> mass,
                         std::span<double> o) const {
  const uint32_t head = q_head / shape_.group(), dim = shape_.head_dim;
  const float* q = layers_[layer].q.data() + (size_t{pos} * shape_.n_q_heads + q_head) * dim;
  const std::vector<double> weight = weights(q, layer, head, size_t{pos} + 1);
  std::fill(o.begin(), o.end(), 0.0);
  std::transform(weight.begin(), weight.end(), mass.begin(),
                 [](double w) { return static_cast<float>(w); });
  const float* v = layers_[layer].v.data() + uint64_t{head} * dim;
  kernels::add_weighted_rows_f64(weight.data(), v, weight.size(), uint64_t{shape_.n_kv_heads} * dim,
                                 dim, o.data());
}

void RecallWorld::attend_with(const float* q, uint32_t layer, uint32_t kv_head,
                              std::span<float> mass) const {
  const std::vector<double> weight = weights(q, layer, kv_head, mass.size());
  std::transform(weight.begin(), weight.end(), mass.begin(),
                 [](double w) { return static_cast<float>(w); });
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
