// Random rotations for InfiniGen as an oracle sees them and as the file of kvasir/ext/draft/skew.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/skew.h>
#include <xxhash.h>

#include <string>

#include "tests/oracles/random.h"

namespace kvasir::oracle {

// Numbers are those of the file, in f32. Layer 0, which the duels keep dense, is not turned.
struct Skewing {
  std::vector<std::vector<Vectors>> a;            // [layer][kv_head]: the columns of A
  std::vector<std::vector<Vector>> q_sum, k_sum;  // [layer][kv_head][column]: of the file's text
};

inline Vectors random_rotation(uint32_t dim, Random& random) {
  Vectors out;
  while (out.size() < dim) {  // Gram and Schmidt
    Vector x = random.normals(dim);
    for (int i = 0; i < 2; ++i)  // once more, as the first time leaves rounding
      for (const Vector& y : out) {
        const double along = dot(x, y);
        for (uint32_t d = 0; d < dim; ++d) x[d] -= along * y[d];
      }
    const double length = std::sqrt(dot(x, x));
    for (double& value : x) value /= length;
    out.push_back(std::move(x));
  }
  for (Vector& column : out)
    for (double& value : column) value = double{static_cast<float>(value)};
  return out;
}

inline Skewing random_skewing(uint32_t n_layers, const Heads& heads, Random& random) {
  Skewing out;
  const auto sum = [&] { return double{static_cast<float>(random.uniform())}; };
  for (uint32_t layer = 0; layer < n_layers; ++layer) {
    out.a.emplace_back(), out.q_sum.emplace_back(), out.k_sum.emplace_back();
    for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
      Vectors unit(heads.head_dim, Vector(heads.head_dim, 0.0));
      for (uint32_t d = 0; d < heads.head_dim; ++d) unit[d][d] = 1.0;
      out.a[layer].push_back(layer == 0 ? unit : random_rotation(heads.head_dim, random));
      for (auto* sums : {&out.q_sum, &out.k_sum}) {
        Vector& of = sums->back().emplace_back();
        for (uint32_t c = 0; c < heads.head_dim; ++c) of.push_back(sum());
      }
    }
  }
  return out;
}

// The bytes for a model without a hash.
inline std::string skew_file(const Skewing& of, const Heads& heads) {
  std::vector<float> numbers;
  const auto put = [&](const Vector& values) {
    for (const double x : values) numbers.push_back(static_cast<float>(x));
  };
  for (const auto& layer : of.a)
    for (const Vectors& matrix : layer)
      for (const Vector& column : matrix) put(column);
  for (size_t layer = 0; layer < of.a.size(); ++layer)
    for (uint32_t g = 0; g < heads.n_kv_heads; ++g)
      put(of.q_sum[layer][g]), put(of.k_sum[layer][g]);
  const size_t bytes = numbers.size() * sizeof(float);
  kvasir_skew_header header{KVASIR_SKEW_MAGIC,
                            KVASIR_SKEW_VERSION,
                            static_cast<uint32_t>(of.a.size()),
                            heads.n_kv_heads,
                            heads.head_dim,
                            0,
                            XXH3_64bits(numbers.data(), bytes)};
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(reinterpret_cast<const char*>(numbers.data()), bytes);
}

}  // namespace kvasir::oracle
