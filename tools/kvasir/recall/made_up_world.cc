// See made_up_world.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/made_up_world.h"

#include <algorithm>
#include <cmath>

namespace kvasir::tool {
namespace {

RopeConfig rope_config(uint32_t head_dim) {
  RopeConfig rope;
  rope.n_dims = head_dim;
  rope.base = 500000.0f;
  return rope;
}

}  // namespace

MadeUpWorld::MadeUpWorld(const RecallShape& shape, const Planted& planted, uint64_t seed)
    : RecallWorld(shape, 1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
      planted_(planted),
      seed_(seed),
      rope_(rope_config(shape.head_dim), shape.n_tokens()) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<uint32_t> place(shape.sink, shape.context - shape.window - 1);
  while (needles_.size() < planted.needles) needles_.insert(place(random));
  for (Layer& layer : layers_) fill(layer, random);
}

PrescribedModel::Geometry MadeUpWorld::geometry() const {
  return {.n_layers = shape_.n_layers,
          .n_q_heads = shape_.n_q_heads,
          .n_kv_heads = shape_.n_kv_heads,
          .head_dim = shape_.head_dim,
          .v_head_dim = shape_.head_dim,
          .max_context = shape_.n_tokens(),
          .rope = rope_config(shape_.head_dim)};
}

// A needle's logit is what gives all needles the wanted share of the sum. Queries of a group have
// one direction in common and differ from token to token, as in a sentence.
void MadeUpWorld::fill(Layer& layer, std::mt19937_64& random) const {
  constexpr double kDeviation = 2.0;
  std::normal_distribution<double> normal;
  const uint32_t dim = shape_.head_dim, group = shape_.group();
  const size_t n = shape_.n_tokens();
  const double share = planted_.needle_mass / (1.0 - planted_.needle_mass);
  const double needle_logit =
      std::log(share * shape_.context / planted_.needles) + kDeviation * kDeviation / 2.0;
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
          direction[d] = lean[d] + planted_.drift * normal(random) / scale;
          norm += direction[d] * direction[d];
        }
        for (uint32_t d = 0; d < dim; ++d)
          q[d] = static_cast<float>(direction[d] * scale / std::sqrt(norm));
      }
    }
  }
}

void MadeUpWorld::project(uint32_t layer, int32_t token, float* q, float* k, float* v) const {
  const auto at = static_cast<uint32_t>(token);
  const Layer& from = layers_[layer];
  turn_back(from.q, shape_.n_q_heads, at, q);
  if (!k) return rehearse(layer, at, q);
  turn_back(from.k, shape_.n_kv_heads, at, k);
  const size_t width = size_t{shape_.n_kv_heads} * shape_.head_dim;
  std::copy_n(from.v.data() + at * width, width, v);
}

// Each head's query turned away from itself by the angle of the cosine, in a random direction,
// which is the same whenever it is asked for.
void MadeUpWorld::rehearse(uint32_t layer, uint32_t token, float* q) const {
  const uint32_t dim = shape_.head_dim;
  std::mt19937_64 random(seed_ ^ (uint64_t{layer} << 32 | token));
  std::normal_distribution<double> normal;
  std::vector<double> aside(dim);
  const double cosine = planted_.rehearsal, sine = std::sqrt(1.0 - cosine * cosine);
  for (uint32_t head = 0; head < shape_.n_q_heads; ++head, q += dim) {
    double along = 0, squares = 0, length = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      aside[d] = normal(random);
      along += aside[d] * double{q[d]};
      squares += double{q[d]} * double{q[d]};
    }
    for (uint32_t d = 0; d < dim; ++d) {
      aside[d] -= along / squares * double{q[d]};
      length += aside[d] * aside[d];
    }
    for (uint32_t d = 0; d < dim; ++d)
      q[d] =
          static_cast<float>(cosine * double{q[d]} + sine * aside[d] * std::sqrt(squares / length));
  }
}

void MadeUpWorld::turn_back(const std::vector<float>& from, uint32_t heads, uint32_t token,
                            float* to) const {
  const size_t width = size_t{heads} * shape_.head_dim;
  std::copy_n(from.data() + token * width, width, to);
  const int32_t back[] = {-static_cast<int32_t>(token)};
  rope_.shift(to, 1, heads, shape_.head_dim, back, shape_.context);
}

}  // namespace kvasir::tool
