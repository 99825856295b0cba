// See world.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/world.h"

#include "tests/oracles/random.h"

namespace kvasir::oracle {
namespace {

constexpr double kRopeBase = 10000.0;

// Nearly normal, variance 1, in multiples of 2^-14: the sum of four uniform 16-bit numbers.
float number(Random& random) {
  const uint64_t bits = random.bits();
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(bits >> (16 * i) & 0xffff);
  return static_cast<float>(sum - 2 * 0xffff) * (1.0f / 37837.0f);
}

}  // namespace

const World::Look& World::look(uint32_t layer, int32_t token) {
  const auto [at, fresh] = looks_.try_emplace({layer, token});
  Look& out = at->second;
  if (!fresh) return out;
  Random random(seed_ * 1000003 + static_cast<uint64_t>(token) * 64 + layer);
  const Heads& heads = shape_.heads;
  out.q.resize(size_t{heads.n_q_heads} * heads.head_dim);
  out.k.resize(size_t{heads.n_kv_heads} * heads.head_dim);
  out.v.resize(out.k.size());
  const bool zero = shape_.one_zero_key_in > 0 && random.one_in(shape_.one_zero_key_in);
  for (float& x : out.q) x = static_cast<float>(shape_.q_scale) * number(random);
  for (float& x : out.k) x = zero ? 0.0f : number(random);
  if (shape_.short_keys)
    for (auto* vectors : {&out.q, &out.k})
      for (float& x : *vectors) x = std::nearbyint(x * 64.0f) / 64.0f;
  for (float& x : out.v) x = number(random);
  return out;
}

PrescribedModel World::model(uint32_t max_context, PrescribedModel::Output output) {
  const Heads& heads = shape_.heads;
  RopeConfig rope;
  rope.n_dims = shape_.rope ? heads.head_dim : 0;
  rope.base = static_cast<float>(kRopeBase);
  rope.pairing =
      shape_.pairs == RopePairs::kHalves ? RopePairing::kHalfSplit : RopePairing::kInterleaved;
  return PrescribedModel(
      {shape_.n_layers, heads.n_q_heads, heads.n_kv_heads, heads.head_dim, heads.head_dim,
       max_context, rope},
      [this](uint32_t layer, int32_t token, float* q, float* k, float* v) {
        const Look& of = look(layer, token);
        std::copy(of.q.begin(), of.q.end(), q);
        if (k) std::copy(of.k.begin(), of.k.end(), k);
        if (v) std::copy(of.v.begin(), of.v.end(), v);
      },
      std::move(output));
}

Vector Track::turned(const float* x, double pos) const {
  const Vector raw(x, x + shape().heads.head_dim);
  return shape().rope ? rotate(raw, pos, kRopeBase, shape().pairs) : raw;
}

void Track::append(int32_t token) {
  const uint32_t pos = size(), dim = shape().heads.head_dim;
  tokens_.push_back(token);
  for (uint32_t layer = 0; layer < shape().n_layers; ++layer) {
    const World::Look& look = world_->look(layer, token);
    Layer& of = layers_[layer];
    for (auto* heads : {&of.k, &of.raw, &of.v}) heads->resize(shape().heads.n_kv_heads);
    for (uint32_t g = 0; g < shape().heads.n_kv_heads; ++g) {
      const float* k = look.k.data() + size_t{g} * dim;
      const float* v = look.v.data() + size_t{g} * dim;
      of.k[g].push_back(turned(k, pos));
      of.raw[g].emplace_back(k, k + dim);
      of.v[g].emplace_back(v, v + dim);
    }
  }
}

void Track::truncate(uint32_t n) {
  tokens_.resize(n);
  for (Layer& layer : layers_)
    for (auto* heads : {&layer.k, &layer.raw, &layer.v})
      for (Vectors& tokens : *heads) tokens.resize(n);
  prompt_begin_ = std::min(prompt_begin_, n);
  prompt_end_ = std::min(prompt_end_, n);
}

Vector Track::q(uint32_t layer, uint32_t q_head, uint32_t pos) const {
  return q_at(layer, q_head, pos, pos);
}

Vectors Track::queries(uint32_t layer, uint32_t pos) const {
  Vectors out;
  for (uint32_t h = 0; h < shape().heads.n_q_heads; ++h) out.push_back(q(layer, h, pos));
  return out;
}

Vector Track::q_at(uint32_t layer, uint32_t q_head, uint32_t pos, double turned_to) const {
  const World::Look& look = world_->look(layer, tokens_[pos]);
  return turned(look.q.data() + size_t{q_head} * shape().heads.head_dim, turned_to);
}

Vectors Track::k_by_slot(uint32_t layer, uint32_t kv_head, const Indices& tokens) const {
  Vectors out;
  for (const uint32_t t : tokens) {
    const World::Look& look = world_->look(layer, tokens_[t]);
    out.push_back(turned(look.k.data() + size_t{kv_head} * shape().heads.head_dim,
                         static_cast<double>(out.size())));
  }
  return out;
}

Vector Track::probability(uint32_t layer, uint32_t q_head, uint32_t pos,
                          const Indices& seen) const {
  const Vectors& keys = k(layer, shape().heads.kv_head(q_head));
  return softmax(logits(q(layer, q_head, pos), keys, seen, scale()));
}

}  // namespace kvasir::oracle
