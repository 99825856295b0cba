// Scores of keys of four bits against their definition in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/nibble_keys.h"

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;

struct NibbleKeys {
  size_t head_dim = 0;
  std::vector<uint8_t> bytes;
  std::vector<double> value;  // [n][head_dim]
  std::vector<double> size;   // of what it is the sum of

  NibbleKeys(size_t n, size_t dim, uint32_t seed) : head_dim(dim) {
    const size_t key_bytes = 8 + (dim + 7) / 8 * 4;
    CHECK(kernels::nibble_key_bytes(dim) == key_bytes);
    const auto scales = test::random_floats(2 * n, 2.0f, seed);
    std::mt19937 random(seed);
    bytes.resize(n * key_bytes);
    for (size_t i = 0; i < n; ++i) {
      uint8_t* key = bytes.data() + i * key_bytes;
      std::memcpy(key, scales.data() + 2 * i, 8);
      for (size_t b = 8; b < key_bytes; ++b) key[b] = static_cast<uint8_t>(random());  // all of it
      for (size_t d = 0; d < dim; ++d) {
        const unsigned nibble = d % 2 == 0 ? key[8 + d / 2] & 15u : key[8 + d / 2] >> 4u;
        const double low = double{scales[2 * i]}, above = double{scales[2 * i + 1]} * nibble;
        value.push_back(low + above);
        size.push_back(std::fabs(low) + std::fabs(above));
      }
    }
  }
  std::vector<const void*> pointers() const {
    std::vector<const void*> out;
    const size_t key_bytes = kernels::nibble_key_bytes(head_dim);
    for (size_t at = 0; at < bytes.size(); at += key_bytes) out.push_back(bytes.data() + at);
    return out;
  }
};

}  // namespace

TEST_SUITE("kernels/nibble_keys") {
  TEST_CASE("a score is the dot product with the decoded key, for any width and number of heads") {
    test::for_each_simd_target([] {
      for (const size_t dim : {1, 2, 7, 8, 15, 33, 64, 80, 127, 128, 256}) {
        for (const size_t n : {1, 3, 15, 16, 17, 33}) {
          for (const size_t n_heads : {1, 2, 3, 7}) {
            CAPTURE(dim);
            CAPTURE(n);
            CAPTURE(n_heads);
            const NibbleKeys keys(n, dim, 901);
            const auto q = test::random_floats(n_heads * dim, 1.0f, 902);
            const size_t stride = n + 2;
            std::vector<float> score(n_heads * stride, 42.0f);
            test::Scratch scratch(kernels::nibble_score_scratch_bytes(n_heads, dim));
            kernels::score_nibble_keys(q.data(), n_heads, dim, keys.pointers().data(), n,
                                       score.data(), stride, scratch.get());
            double worst = 0.0;  // error as a share of the terms' size
            for (size_t g = 0; g < n_heads; ++g) {
              for (size_t i = 0; i < n; ++i) {
                double dot = 0.0, size = 0.0;
                for (size_t d = 0; d < dim; ++d) {
                  dot += double{q[g * dim + d]} * keys.value[i * dim + d];
                  size += std::fabs(double{q[g * dim + d]}) * keys.size[i * dim + d];
                }
                worst = std::fmax(worst, std::fabs(double{score[g * stride + i]} - dot) / size);
              }
              CHECK(score[g * stride + n] == 42.0f);
            }
            CHECK(worst <= 1e-6);
          }
        }
      }
    });
  }
}
