// Rotations of rows against their definition in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/larger_or_nan.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::RopePairing;

constexpr RopePairing kPairings[] = {RopePairing::kInterleaved, RopePairing::kHalfSplit};
// Below, at and above the lanes of every target, and the widths of models.
constexpr size_t kPairCounts[] = {1, 2, 3, 5, 8, 15, 16, 17, 40, 64, 127, 512};

struct Rows {
  size_t n_pairs, n_rows, stride;
  std::vector<float> cos, sin, x;  // x [n_rows, stride]: `stride - 2 n_pairs` elements stay

  Rows(size_t pairs, size_t rows, size_t rest)
      : n_pairs(pairs), n_rows(rows), stride(2 * pairs + rest), x(rows * stride) {
    std::mt19937 random(static_cast<uint32_t>(pairs * 31 + rows));
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = 3.0f * normal(random);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  std::vector<float> rotated(RopePairing pairing) const {
    std::vector<float> y = x;
    kernels::rotate_rows(pairing, cos.data(), sin.data(), n_pairs, y.data(), n_rows, stride);
    return y;
  }
};

// One row as complex numbers: element a + i b of each pair times cos + i sin.
std::vector<double> oracle(const Rows& rows, size_t row, RopePairing pairing) {
  const float* x = rows.x.data() + row * rows.stride;
  std::vector<double> y(x, x + rows.stride);
  for (size_t i = 0; i < rows.n_pairs; ++i) {
    const size_t a = pairing == RopePairing::kInterleaved ? 2 * i : i;
    const size_t b = pairing == RopePairing::kInterleaved ? 2 * i + 1 : i + rows.n_pairs;
    const double c = double{rows.cos[i]}, s = double{rows.sin[i]};
    y[a] = c * double{x[a]} - s * double{x[b]};
    y[b] = s * double{x[a]} + c * double{x[b]};
  }
  return y;
}

}  // namespace

TEST_SUITE_BEGIN("kernels/rope");

TEST_CASE("each pair of each row turns by its angle, and the rest of the row stays") {
  test::for_each_simd_target([] {
    for (const RopePairing pairing : kPairings) {
      for (const size_t n_pairs : kPairCounts) {
        for (const size_t n_rows : {size_t{0}, size_t{1}, size_t{2}, size_t{7}}) {
          for (const size_t rest : {size_t{0}, size_t{3}}) {
            CAPTURE(n_pairs);
            CAPTURE(n_rows);
            const Rows rows(n_pairs, n_rows, rest);
            const auto got = rows.rotated(pairing);
            double worst = 0.0;
            bool rest_stays = true;
            for (size_t row = 0; row < n_rows; ++row) {
              const auto want = oracle(rows, row, pairing);
              for (size_t i = 0; i < rows.stride; ++i) {
                const float value = got[row * rows.stride + i];
                const double error = std::abs(double{value} - want[i]);
                worst = test::larger_or_nan(worst, error / (1.0 + std::abs(want[i])));
                if (i >= 2 * n_pairs) rest_stays = rest_stays && double{value} == want[i];
              }
            }
            CHECK(worst < 3e-7);
            CHECK(rest_stays);
          }
        }
      }
    }
  });
}

TEST_CASE("a row has the same bits alone as among others") {
  test::for_each_simd_target([] {
    for (const RopePairing pairing : kPairings) {
      for (const size_t n_pairs : kPairCounts) {
        CAPTURE(n_pairs);
        const Rows rows(n_pairs, 9, 1);
        const auto all = rows.rotated(pairing);
        auto alone = rows.x;
        for (size_t row = 0; row < rows.n_rows; ++row) {
          kernels::rotate_rows(pairing, rows.cos.data(), rows.sin.data(), n_pairs,
                               alone.data() + row * rows.stride, 1, rows.stride);
        }
        CHECK(alone == all);
      }
    }
  });
}

TEST_CASE("a pair has the same bits in a vector as left over behind the last one") {
  test::for_each_simd_target([] {
    for (const RopePairing pairing : kPairings) {
      for (const size_t n_pairs : kPairCounts) {
        CAPTURE(n_pairs);
        const Rows rows(n_pairs, 1, 0);
        const auto all = rows.rotated(pairing);
        bool same = true;
        for (size_t i = 0; i < n_pairs; ++i) {
          const size_t a = pairing == RopePairing::kInterleaved ? 2 * i : i;
          const size_t b = pairing == RopePairing::kInterleaved ? 2 * i + 1 : i + n_pairs;
          float pair[] = {rows.x[a], rows.x[b]};
          kernels::rotate_rows(pairing, &rows.cos[i], &rows.sin[i], 1, pair, 1, 2);
          same = same && pair[0] == all[a] && pair[1] == all[b];
        }
        CHECK(same);
      }
    }
  });
}
