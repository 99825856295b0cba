// Synthetic sequences as an oracle sees them: every token's queries, keys and values in every
// layer, after RoPE in double precision, for the same names that a PrescribedModel shows the
// runtime.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "core/model/synthetic/prescribed_model.h"
#include "tests/oracles/primitives.h"

namespace kvasir::oracle {

struct Shape {
  Heads heads;
  uint32_t n_layers = 2;
  bool rope = true;
  RopePairs pairs = RopePairs::kNeighbours;
  // One token in so many has a key of zeros and equal scores with its like; 0: none.
  uint32_t one_zero_key_in = 0;
  double q_scale = 2.0;
  bool short_keys = false;  // and queries: multiples of 1/64, exact in f16
};

// What each token looks like in each layer, before RoPE; made when first asked for.
class World {
 public:
  World(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}
  struct Look {
    std::vector<float> q, k, v;  // [heads][head_dim]
  };
  const Look& look(uint32_t layer, int32_t token);
  PrescribedModel model(uint32_t max_context, PrescribedModel::Output output);
  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  uint64_t seed_;
  std::map<std::pair<uint32_t, int32_t>, Look> looks_;
};

// One sequence: what stands at each position.
class Track {
 public:
  explicit Track(World& world) : world_(&world), layers_(world.shape().n_layers) {}

  void append(int32_t token);
  void truncate(uint32_t n);
  void set_prompt(uint32_t begin, uint32_t end) {
    prompt_begin_ = begin;
    prompt_end_ = end;
  }

  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  uint32_t prompt_begin() const { return prompt_begin_; }
  uint32_t prompt_end() const { return prompt_end_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const Shape& shape() const { return world_->shape(); }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape().heads.head_dim)); }

  const Vectors& k(uint32_t layer, uint32_t kv_head) const { return layers_[layer].k[kv_head]; }
  const Vectors& k_raw(uint32_t layer, uint32_t kv_head) const {
    return layers_[layer].raw[kv_head];
  }
  const Vectors& v(uint32_t layer, uint32_t kv_head) const { return layers_[layer].v[kv_head]; }
  Vector q(uint32_t layer, uint32_t q_head, uint32_t pos) const;
  Vectors queries(uint32_t layer, uint32_t pos) const;  // of all query heads
  // The same query turned as if it stood at another position.
  Vector q_at(uint32_t layer, uint32_t q_head, uint32_t pos, double turned_to) const;
  // Keys turned as if each stood at its index in `tokens`.
  Vectors k_by_slot(uint32_t layer, uint32_t kv_head, const Indices& tokens) const;
  // Probability of each of `tokens` for the query at pos.
  Vector probability(uint32_t layer, uint32_t q_head, uint32_t pos, const Indices& seen) const;

 private:
  struct Layer {
    std::vector<Vectors> k, raw, v;  // [kv_head][pos]
  };
  Vector turned(const float* x, double pos) const;

  World* world_;
  std::vector<int32_t> tokens_;
  std::vector<Layer> layers_;
  uint32_t prompt_begin_ = 0, prompt_end_ = 0;
};

}  // namespace kvasir::oracle
