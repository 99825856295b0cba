// Block summaries and their scores against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/representative.h"

#include <limits>

#include "kernels/convert.h"
#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::ElementType;
using kernels::KeyRows;
using kernels::Records;

std::vector<double> decode(const std::vector<uint8_t>& bytes, size_t n, ElementType type) {
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = kernels::reference::element(bytes.data(), i, type);
  return out;
}

struct Keys {
  std::vector<uint8_t> bytes;
  KeyRows rows;
  Keys(size_t n, size_t head_dim, ElementType type, uint32_t seed, float scale = 1.0f) {
    const size_t stride = test::row_stride(type, head_dim, 6);
    bytes =
        test::store_rows(test::random_floats(n * head_dim, scale, seed), head_dim, stride, type);
    rows = {bytes.data(), stride, n, head_dim, type};
  }
  KeyRows part(size_t begin, size_t end) const {
    return {bytes.data() + begin * rows.token_stride, rows.token_stride, end - begin, rows.head_dim,
            rows.type};
  }
};

// of_head [heads][n]
std::vector<double> sums_over_heads(const std::vector<double>& of_head, size_t heads, size_t n) {
  std::vector<double> sum(n);
  for (size_t i = 0; i < heads * n; ++i) sum[i % n] += of_head[i];
  return sum;
}

}  // namespace

TEST_SUITE("kernels/representative") {
  TEST_CASE("fed in pieces, minima, maxima and means are those of the whole block") {
    for (const ElementType type : test::kElementTypes) {
      for (const size_t head_dim : {8u, 36u, 64u, 100u, 128u}) {
        if (!test::can_store(type, head_dim)) continue;
        const Keys keys(33, head_dim, type, 301);
        const auto expected = kernels::reference::channel_stats(keys.rows);
        test::for_each_simd_target([&] {
          std::vector<float> record(2 * head_dim, 99.0f);
          std::vector<float> sum(head_dim, 99.0f);
          std::vector<float> mean(head_dim);
          size_t begin = 0;
          for (const size_t end : {1u, 1u, 17u, 33u}) {
            kernels::update_min_max(keys.part(begin, end), begin == 0, ElementType::kF32,
                                    record.data());
            kernels::update_sum(keys.part(begin, end), begin == 0, sum.data());
            begin = end;
          }
          kernels::store_mean(sum.data(), head_dim, 33, ElementType::kF32, mean.data());
          for (size_t d = 0; d < head_dim; ++d) {
            CHECK(record[d] == expected.min[d]);
            CHECK(record[head_dim + d] == expected.max[d]);
          }
          test::check_close(mean, expected.mean, 1e-6);
        });
      }
    }
  }

  TEST_CASE("an f16 minmax record encloses its keys within one step, and f16 keys exactly") {
    for (const ElementType type : test::kElementTypes) {
      for (const float scale : {1e-6f, 1.0f, 300.0f}) {
        const size_t dim = test::can_store(type, 36) ? 36 : 64;
        const Keys keys(20, dim, type, 311, scale);
        const auto exact = kernels::reference::channel_stats(keys.rows);
        test::for_each_simd_target([&] {
          std::vector<uint8_t> record(2 * dim * 2);
          kernels::update_min_max(keys.part(0, 9), true, ElementType::kF16, record.data());
          kernels::update_min_max(keys.part(9, 20), false, ElementType::kF16, record.data());
          const auto stored = decode(record, 2 * dim, ElementType::kF16);
          for (size_t d = 0; d < dim; ++d) {
            const double step_low = std::fmax(std::fabs(exact.min[d]) / 512, 0x1p-23);
            const double step_high = std::fmax(std::fabs(exact.max[d]) / 512, 0x1p-23);
            CHECK(stored[d] <= exact.min[d]);
            CHECK(stored[d] >= exact.min[d] - (type == ElementType::kF16 ? 0.0 : step_low));
            CHECK(stored[dim + d] >= exact.max[d]);
            CHECK(stored[dim + d] <= exact.max[d] + (type == ElementType::kF16 ? 0.0 : step_high));
          }
        });
      }
    }
  }

  TEST_CASE("an f16 record stays finite when keys do not fit f16") {
    const std::vector<float> k = {1e30f, -1e30f, 65519.0f, 1.0f};
    const KeyRows rows{k.data(), 16, 1, 4, ElementType::kF32};
    test::for_each_simd_target([&] {
      std::vector<uint8_t> record(16);
      kernels::update_min_max(rows, true, ElementType::kF16, record.data());
      const auto stored = decode(record, 8, ElementType::kF16);
      CHECK(stored[0] == 65504.0);
      CHECK(stored[1] == -65504.0);
      CHECK(stored[4] == 65504.0);
      CHECK(stored[5] == -65504.0);
    });
  }

  TEST_CASE("a q8_0 minmax record encloses its keys within one step of its group") {
    for (const ElementType type : test::kElementTypes) {
      for (const float scale : {1e-8f, 1e-3f, 1.0f, 300.0f, 2e4f}) {  // subnormal scales to large
        for (const size_t dim : {32u, 96u}) {
          CAPTURE(scale);
          CAPTURE(dim);
          const Keys keys(21, dim, type, 341 + static_cast<uint32_t>(dim), scale);
          const auto exact = kernels::reference::channel_stats(keys.rows);
          const auto largest_of = [&](const std::vector<double>& bounds, size_t group) {
            double largest = 0;
            for (size_t i = 0; i < 32; ++i)
              largest = std::fmax(largest, std::fabs(bounds[group * 32 + i]));
            return largest;
          };
          test::for_each_simd_target([&] {
            std::vector<uint8_t> record(kernels::row_bytes(ElementType::kQ8_0, 2 * dim));
            kernels::update_min_max(keys.rows, true, ElementType::kQ8_0, record.data());
            const auto stored = decode(record, 2 * dim, ElementType::kQ8_0);
            for (size_t d = 0; d < dim; ++d) {
              // A step of 1/127 of the largest, and of the scale's own rounding 127 of 2^-24 below.
              const double low = largest_of(exact.min, d / 32) / 127 * (1 + 0x1p-10) + 0x1p-24;
              const double high = largest_of(exact.max, d / 32) / 127 * (1 + 0x1p-10) + 0x1p-24;
              CHECK(stored[d] <= exact.min[d]);
              CHECK(stored[d] >= exact.min[d] - low);
              CHECK(stored[dim + d] >= exact.max[d]);
              CHECK(stored[dim + d] <= exact.max[d] + high);
            }
          });
        }
      }
    }
  }

  TEST_CASE("a q8_0 record of keys that do not fit is finite, of keys that are no numbers NaN") {
    std::vector<float> k(64, 1.0f);
    k[3] = 1e30f;
    k[32] = std::numeric_limits<float>::infinity();
    const KeyRows rows{k.data(), 256, 1, 64, ElementType::kF32};
    test::for_each_simd_target([&] {
      std::vector<uint8_t> record(kernels::row_bytes(ElementType::kQ8_0, 128));
      kernels::update_min_max(rows, true, ElementType::kQ8_0, record.data());
      const auto stored = decode(record, 128, ElementType::kQ8_0);
      for (const size_t first : {0u, 64u}) {
        CHECK(stored[first + 3] == 127.0 * 65504.0);
        CHECK(std::isnan(stored[first + 33]));
      }
    });
  }

  TEST_CASE("a q8_0 mean is the mean, rounded as a row is") {
    const Keys keys(19, 64, ElementType::kF16, 351);
    test::for_each_simd_target([&] {
      std::vector<float> sum(64), mean(64);
      kernels::update_sum(keys.rows, true, sum.data());
      kernels::store_mean(sum.data(), 64, 19, ElementType::kF32, mean.data());
      const auto want = test::store_rows(mean, 64, 68, ElementType::kQ8_0);
      std::vector<uint8_t> record(68);
      kernels::store_mean(sum.data(), 64, 19, ElementType::kQ8_0, record.data());
      CHECK(record == want);
    });
  }

  TEST_CASE("what lies between records does not count, even NaN") {
    for (const size_t head_dim : {1u, 12u, 13u, 21u}) {
      const size_t stride = 4 * (head_dim + 20);
      std::vector<float> memory(9 * stride / 4, std::numeric_limits<float>::quiet_NaN());
      const auto keys = test::random_floats(9 * head_dim, 1.0f, 331);
      for (size_t i = 0; i < 9; ++i)
        std::copy_n(keys.data() + i * head_dim, head_dim, memory.data() + i * stride / 4);
      const Records records{memory.data(), stride, 9, head_dim, ElementType::kF32};
      const auto q = test::random_floats(head_dim, 1.0f, 332);
      std::vector<double> want(9);
      for (size_t i = 0; i < 9; ++i) want[i] = kernels::reference::score_dot(q.data(), records, i);
      test::for_each_simd_target([&] {
        test::Scratch scratch(kernels::score_scratch_bytes(1, head_dim));
        std::vector<float> out(9);
        kernels::score_dot({q.data(), 1}, records, out.data(), 9, scratch.get());
        test::check_close(out, want, 1e-5);
      });
    }
  }

  TEST_CASE("the scores of many strided records equal the formulas") {
    for (const ElementType type : test::kElementTypes) {
      for (const size_t head_dim : {1u, 8u, 12u, 13u, 36u, 64u, 128u}) {
        if (!test::can_store(type, head_dim)) continue;
        for (const size_t heads : {1u, 3u, 4u, 8u}) {
          for (const size_t n : {0u, 1u, 5u, 130u}) {
            const size_t stride = kernels::row_bytes(type, 2 * head_dim) + 64;
            const auto bytes = test::store_rows(test::random_floats(n * 2 * head_dim, 1.0f, 321),
                                                2 * head_dim, stride, type);
            const Records records{bytes.data(), stride, n, head_dim, type, bytes.data()};
            const auto q = test::random_floats(heads * head_dim, 1.0f, 322);
            std::vector<double> dot(heads * n);
            for (size_t i = 0; i < dot.size(); ++i) {
              const float* qg = q.data() + i / n * head_dim;
              dot[i] = kernels::reference::score_dot(qg, records, i % n);
            }
            test::for_each_simd_target([&] {
              test::Scratch scratch(kernels::score_scratch_bytes(heads, head_dim));
              std::vector<float> out(heads * n);
              kernels::score_dot({q.data(), heads}, records, out.data(), n, scratch.get());
              test::check_close(out, dot, 1e-5);
              std::vector<float> sum(n);
              kernels::score_dot({q.data(), heads, true}, records, sum.data(), n, scratch.get());
              test::check_close(sum, sums_over_heads(dot, heads, n), 1e-5);
            });
          }
        }
      }
    }
  }

  TEST_CASE("the minmax score equals its formula and is never below the best key") {
    for (const ElementType record_type :
         {ElementType::kF32, ElementType::kF16, ElementType::kQ8_0}) {
      const size_t head_dim = record_type == ElementType::kQ8_0 ? 96 : 36;
      const size_t record_bytes = kernels::row_bytes(record_type, 2 * head_dim) + 8;
      std::vector<Keys> blocks;
      for (uint32_t b = 0; b < 19; ++b)
        blocks.emplace_back(16, head_dim, ElementType::kBF16, 400 + b);
      const auto q = test::random_floats(4 * head_dim, 1.0f, 331);
      test::for_each_simd_target([&] {
        std::vector<uint8_t> bytes(19 * record_bytes);
        for (size_t b = 0; b < 19; ++b) {
          kernels::update_min_max(blocks[b].rows, true, record_type, &bytes[b * record_bytes]);
        }
        const Records records{bytes.data(), record_bytes, 19, head_dim, record_type};
        test::Scratch scratch(kernels::score_scratch_bytes(4, head_dim));
        std::vector<float> score(4 * 24, -1.0f);
        kernels::score_min_max({q.data(), 4}, 1.0f, records, score.data(), 24, scratch.get());
        for (size_t g = 0; g < 4; ++g) {
          const float* qg = &q[g * head_dim];
          for (size_t b = 0; b < 19; ++b) {
            const double formula = kernels::reference::score_min_max(qg, 1.0, records, b);
            CHECK(score[g * 24 + b] == doctest::Approx(formula).epsilon(1e-5));
            for (size_t t = 0; t < 16; ++t) {
              const Records key{blocks[b].part(t, t + 1).k, 0, 1, head_dim, ElementType::kBF16};
              CHECK(score[g * 24 + b] >= kernels::reference::score_dot(qg, key, 0) - 1e-4);
            }
          }
          CHECK(score[g * 24 + 19] == -1.0f);
        }
        for (const float scale : {0.0f, 0.3f, 0.75f}) {
          kernels::score_min_max({q.data(), 4}, scale, records, score.data(), 24, scratch.get());
          for (size_t g = 0; g < 4; ++g)
            for (size_t b = 0; b < 19; ++b)
              CHECK(score[g * 24 + b] == doctest::Approx(kernels::reference::score_min_max(
                                                             &q[g * head_dim], scale, records, b))
                                             .epsilon(1e-5));
          std::vector<float> sum(20, -1.0f);
          kernels::score_min_max({q.data(), 4, true}, scale, records, sum.data(), 20,
                                 scratch.get());
          for (size_t b = 0; b < 19; ++b) {
            double want = 0;
            for (size_t g = 0; g < 4; ++g)
              want += kernels::reference::score_min_max(&q[g * head_dim], scale, records, b);
            CHECK(sum[b] == doctest::Approx(want).epsilon(1e-5));
          }
          CHECK(sum[19] == -1.0f);
        }
      });
    }
  }

  TEST_CASE("the worked examples of the bound") {
    const std::vector<float> keys = {1, -1, -2, 3};
    const KeyRows rows{keys.data(), 8, 2, 2, ElementType::kF32};
    test::for_each_simd_target([&] {
      std::vector<float> record(4);
      kernels::update_min_max(rows, true, ElementType::kF32, record.data());
      const Records records{record.data(), 16, 1, 2, ElementType::kF32};
      test::Scratch scratch(kernels::score_scratch_bytes(1, 2));
      float score = 0;
      const float tight[] = {0.5f, -1.0f};
      kernels::score_min_max({tight, 1}, 1.0f, records, &score, 1, scratch.get());
      CHECK(score == 1.5f);
      const float loose[] = {-1.0f, -1.0f};
      kernels::score_min_max({loose, 1}, 1.0f, records, &score, 1, scratch.get());
      CHECK(score == 3.0f);
    });
  }
}
