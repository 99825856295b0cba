// See made_up_context.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/made_up_context.h"

#include <algorithm>
#include <random>

#include "core/error.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kFirstTokens = 4;  // that stay what they are
constexpr float kMixed = 0.25f;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Which tokens of the sample make up the token at `pos`.
struct Recipe {
  uint32_t base, plus, minus;
};
Recipe recipe_of(uint32_t n_tokens, uint64_t seed, uint32_t pos) {
  if (pos < std::min(kFirstTokens, n_tokens)) return {pos, pos, pos};
  const uint32_t first = n_tokens > 2 * kFirstTokens ? kFirstTokens : 0;
  const uint32_t n = n_tokens - first;
  const uint64_t bits = mix(seed ^ mix(pos));
  const auto drawn = [&](int shift) {
    return first + static_cast<uint32_t>(((bits >> shift) & 0xFFFF) % n);
  };
  return {drawn(0), drawn(16), drawn(32)};
}

void write_token(const std::vector<float>& sample, size_t width, const Recipe& recipe, float* to) {
  const float* base = sample.data() + recipe.base * width;
  const float* plus = sample.data() + recipe.plus * width;
  const float* minus = sample.data() + recipe.minus * width;
  for (size_t i = 0; i < width; ++i) to[i] = base[i] + kMixed * (plus[i] - minus[i]);
}

struct Widths {
  size_t q, k, v;
  explicit Widths(const ModelShape& s)
      : q(size_t{s.n_q_heads} * s.head_dim),
        k(size_t{s.n_kv_heads} * s.head_dim),
        v(size_t{s.n_kv_heads} * s.v_head_dim) {}
};

}  // namespace

ProjectionSample normal_sample(const ModelShape& shape, uint32_t n_tokens, uint64_t seed) {
  const Widths widths(shape);
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](size_t width) {
    std::vector<float> out(n_tokens * width);
    for (float& x : out) x = normal(bits);
    return out;
  };
  ProjectionSample out;
  out.n_tokens = n_tokens;
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    out.q.push_back(draw(widths.q));
    out.k.push_back(draw(widths.k));
    out.v.push_back(draw(widths.v));
  }
  return out;
}

GivenProjections made_up_projections(ProjectionSample sample, const ModelShape& shape,
                                     uint64_t seed, ThreadPool& pool) {
  const Widths widths(shape);
  const auto shared = std::make_shared<const ProjectionSample>(std::move(sample));
  return [shared, widths, seed, &pool](uint32_t layer, uint32_t first_pos, uint32_t n, float* q,
                                       float* k, float* v) {
    pool.parallel_for(n, 0, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin; i < end; ++i) {
        const Recipe recipe =
            recipe_of(shared->n_tokens, seed, first_pos + static_cast<uint32_t>(i));
        write_token(shared->q[layer], widths.q, recipe, q + i * widths.q);
        write_token(shared->k[layer], widths.k, recipe, k + i * widths.k);
        write_token(shared->v[layer], widths.v, recipe, v + i * widths.v);
      }
    });
  };
}

std::string stored_type(const Pipeline& pipeline, const std::string& key) {
  for (const Pipeline::Explained& plugin : pipeline.explained)
    for (const auto& option : plugin.options)
      if (plugin.kind == Kind::kStorage && option.key == key) {
        std::string value = option.value;  // as TOML has it, in quotes
        std::erase(value, '"');
        return value;
      }
  return "-";
}

}  // namespace kvasir::tool
