// Rows times quantised panels: against sums in double of the weights that dequantize() reads from
// the same blocks, to the bit between numbers of rows, and against the rows before they were
// rounded.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/quantized_panel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/model/gguf/float16.h"
#include "core/model/gguf/quant.h"
#include "kernels/quantized_product.h"
#include "kernels/simd_target.h"
#include "kernels/tiled_rows.h"
#include "tests/support/effort.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::QuantizedRows;
using kernels::QuantizedType;

constexpr GgmlType kTypes[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                               GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kIQ4_NL,
                               GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K};

// Where a block keeps its binary16 numbers, which must be finite; all other bytes may be anything.
std::vector<size_t> halves_of(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return {0, 2};
    case GgmlType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// n_out rows of random blocks; every byte value occurs in every place but the scales, or `byte`
// alone.
struct Weights {
  Weights(GgmlType of, uint32_t in, uint32_t out, std::optional<uint8_t> byte = {})
      : type(of), n_in(in), n_out(out) {
    const size_t block = block_bytes(type);
    row_bytes = n_in / block_elements(type) * block;
    bytes.resize(row_bytes * n_out);
    std::mt19937 random(in * 64 + out);
    for (std::byte& b : bytes) b = static_cast<std::byte>(byte ? *byte : random() & 255);
    for (size_t at = 0; at < bytes.size(); at += block)
      for (const size_t half : halves_of(type)) {
        const float scale = std::ldexp(1.0f + static_cast<float>(random() % 1024) / 1024.0f,
                                       -static_cast<int>(4 + random() % 6));
        const uint16_t bits = f32_to_f16(random() % 2 ? scale : -scale);
        std::memcpy(bytes.data() + at + half, &bits, 2);
      }
    panel.resize(kernels::quantized_panel_bytes(*quantized_type(type), n_in), std::byte{0x5A});
    pack_quantized_panel(*quantized_type(type), bytes.data(), row_bytes, n_out, n_in, panel.data());
    values.resize(size_t{n_in} * n_out);
    for (uint32_t j = 0; j < n_out; ++j)
      dequantize(type, bytes.data() + j * row_bytes, values.data() + size_t{j} * n_in, n_in);
  }
  GgmlType type;
  uint32_t n_in, n_out;
  size_t row_bytes;
  std::vector<std::byte> bytes, panel;
  std::vector<float> values;  // [n_out, n_in]
};

// Rounded rows and their memory.
struct Rows {
  Rows(const std::vector<float>& x, size_t n_rows, size_t n_in)
      : memory(kernels::quantized_rows_bytes(n_rows, n_in)),
        at{memory.data(), kernels::quantized_group(n_rows)} {
    kernels::quantize_rows(x.data(), n_in, 0, n_rows, 0, n_in, n_in, at);
  }
  std::vector<std::byte> memory;
  QuantizedRows at;
};

// Blocks of very different magnitudes, one of zeros, one of numbers too small to have a scale.
std::vector<float> activations(size_t n_rows, size_t n_in) {
  std::mt19937 random(static_cast<uint32_t>(n_rows * 8192 + n_in));
  std::normal_distribution<float> normal;
  std::vector<float> x(n_rows * n_in);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(normal(random), static_cast<int>(i / 32 * 7 % 13) - 6);
  for (size_t i = 0; i < 32; ++i) {
    x[i] = 0.0f;
    if (n_in > 64) x[x.size() - 1 - i] = 0x1p-120f;
  }
  return x;
}

// What an unpacked panel takes, and a line in which nobody may write.
class Scratch {
 public:
  Scratch(GgmlType type, size_t n_in, size_t n_rows)
      : n_bytes_(kernels::quantized_scratch_bytes(*quantized_type(type), n_in, n_rows)),
        lines_(n_bytes_ / sizeof(Line) + 1) {
    REQUIRE(n_bytes_ % sizeof(Line) == 0);
    lines_.back().fill(0x5A);
  }
  void* data() { return lines_.data(); }
  bool overrun() const {
    return std::any_of(lines_.back().begin(), lines_.back().end(),
                       [](uint8_t byte) { return byte != 0x5A; });
  }

 private:
  struct alignas(64) Line : std::array<uint8_t, 64> {};
  size_t n_bytes_;
  std::vector<Line> lines_;
};

std::vector<float> multiply(const Weights& w, const QuantizedRows& x, size_t begin, size_t end,
                            bool accumulate, float before, size_t y_stride,
                            Scratch* scratch = nullptr) {
  std::vector<float> y((end - begin) * y_stride, before);
  kernels::quantized_product(*quantized_type(w.type), x, begin, end, w.panel.data(), w.n_in,
                             w.n_out, accumulate, y.data(), y_stride,
                             scratch ? scratch->data() : nullptr);
  return y;
}

// The rows as rounded, times the weights, in double; magnitude: the same of absolute values.
struct Sum {
  double value = 0.0, magnitude = 0.0;
};
Sum sum_of(const Weights& w, const QuantizedRows& x, size_t row, size_t col) {
  Sum sum;
  for (size_t k = 0; k < w.n_in; ++k) {
    const kernels::QuantizedBlock block = x.block(row, k / 32, w.n_in);
    const double a = double{*block.scale} * block.q[k % 32];
    const double product = a * double{w.values[col * w.n_in + k]};
    sum.value += product;
    sum.magnitude += std::abs(product);
  }
  return sum;
}

// Products with rows of x against sums in double.
void check_products(const Weights& w, const std::vector<float>& x, bool accumulate) {
  const size_t n_rows = x.size() / w.n_in, y_stride = w.n_out + 3;
  const Rows rows(x, n_rows, w.n_in);
  Scratch scratch(w.type, w.n_in, n_rows);
  const auto y = multiply(w, rows.at, 0, n_rows, accumulate, 0.75f, y_stride, &scratch);
  CHECK(!scratch.overrun());
  double worst = 0.0;
  size_t touched = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / y_stride, col = i % y_stride;
    if (col >= w.n_out) {
      touched += y[i] != 0.75f;
      continue;
    }
    const Sum sum = sum_of(w, rows.at, row, col);
    const double error = std::abs(sum.value + (accumulate ? 0.75 : 0.0) - double{y[i]});
    worst = test::larger_or_nan(worst, error / (1e-3 + sum.magnitude));
  }
  CHECK(touched == 0);
  // Three roundings to f32 per block of 32 inputs; the min's product cancels most of the others.
  CHECK(worst < 2e-6);
}

void check(GgmlType type, uint32_t n_in, uint32_t n_out, size_t n_rows, bool accumulate) {
  CAPTURE(std::string(name(type)));
  CAPTURE(n_in);
  CAPTURE(n_out);
  CAPTURE(n_rows);
  check_products(Weights(type, n_in, n_out), activations(n_rows, n_in), accumulate);
}

size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  size_t n = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    n += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return n;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/quantized_panel");

TEST_CASE("products are the sums of what dequantising reads, for every type and number of rows") {
  test::for_each_simd_target([] {
    for (const GgmlType type : kTypes) {
      const uint32_t block = block_elements(type);
      for (size_t n_rows = 1; n_rows <= 13; ++n_rows) check(type, 256, 64, n_rows, n_rows % 2 == 0);
      for (const uint32_t blocks : {1u, 3u, 7u}) check(type, blocks * block, 64, 2, false);
      for (const uint32_t n_out : {1u, 15u, 17u, 33u, 63u}) check(type, 512, n_out, 3, true);
      check(type, 3 * block, 61, kernels::kRowsToUnpack + 1, true);
    }
  });
}

TEST_CASE("the largest steps of weights and of rows overflow no sum of products") {
  test::for_each_simd_target([] {
    for (const GgmlType type : kTypes) {
      CAPTURE(std::string(name(type)));
      for (const uint8_t byte : std::initializer_list<uint8_t>{0x00, 0x7f, 0x80, 0xff}) {
        CAPTURE(byte);
        const Weights w(type, 256, 64, byte);
        for (const size_t n_rows : {size_t{3}, kernels::kRowsToUnpack}) {
          // Steps of 127 and of -127, by row and by eight inputs.
          std::vector<float> x(n_rows * w.n_in);
          for (size_t i = 0; i < x.size(); ++i)
            x[i] = (i / w.n_in % 3 == 2 ? i / 8 : i / w.n_in) % 2 ? 127.0f : -127.0f;
          check_products(w, x, false);
        }
      }
    }
  });
}

TEST_CASE("a row has the same bits alone and among others, on every target with fused products") {
  for (const GgmlType type : kTypes) {
    CAPTURE(std::string(name(type)));
    constexpr size_t kRows = 14;
    const Weights w(type, 768, 64);
    const auto x = activations(kRows, w.n_in);
    std::vector<float> best;
    test::for_each_simd_target([&] {
      const std::string target = kernels::simd_target_name();
      const Rows rows(x, kRows, w.n_in);
      const auto all = multiply(w, rows.at, 0, kRows, false, 0.0f, 64);
      for (size_t begin = 0; begin < kRows; ++begin)
        for (size_t end = begin + 1; end <= std::min(kRows, begin + (test::few_cases() ? 2 : 7));
             ++end) {
          const auto some = multiply(w, rows.at, begin, end, false, 0.0f, 64);
          const std::vector<float> same(all.begin() + static_cast<long>(begin * 64),
                                        all.begin() + static_cast<long>(end * 64));
          CHECK(differing(some, same) == 0);
        }
      if (!target.starts_with("AVX")) return;
      if (best.empty()) best = all;
      CHECK(differing(all, best) == 0);
    });
  }
}

TEST_CASE("rows that are enough to unpack a panel have the bits of those that are not") {
  test::for_each_simd_target([] {
    for (const GgmlType type : kTypes) {
      CAPTURE(std::string(name(type)));
      constexpr size_t kMany = kernels::kRowsToUnpack + 5, kFew = kernels::kRowsToUnpack - 1;
      // One block more than are unpacked at a time, and three times as many, with a table of scales
      // and without.
      const auto by_table = static_cast<uint32_t>(kernels::unpacked_inputs(kernels::kScaleLevels));
      const auto plain = static_cast<uint32_t>(kernels::unpacked_inputs(1));
      const uint32_t block = block_elements(type);
      for (const uint32_t n_in :
           {block, by_table + block, 3 * by_table, plain + block, 3 * plain}) {
        if (n_in > 3 * by_table && test::few_cases()) continue;
        CAPTURE(n_in);
        const uint32_t n_out = n_in % (3 * by_table) == 0 ? 47 : 64;
        const Weights w(type, n_in, n_out);
        const Rows rows(activations(kMany + 1, w.n_in), kMany + 1, w.n_in);
        Scratch scratch(type, w.n_in, kMany);
        for (const bool accumulate : {false, true}) {
          const size_t stride = n_out + 3;
          const auto packed = multiply(w, rows.at, 1, kMany + 1, accumulate, 0.75f, stride);
          const auto many = multiply(w, rows.at, 1, kMany + 1, accumulate, 0.75f, stride, &scratch);
          CHECK(differing(many, packed) == 0);
          CHECK(!scratch.overrun());
          const auto few = multiply(w, rows.at, 1, kFew + 1, accumulate, 0.75f, stride, &scratch);
          const std::vector<float> first(packed.begin(),
                                         packed.begin() + static_cast<long>(kFew * stride));
          CHECK(differing(few, first) == 0);
        }
      }
    }
  });
}

TEST_CASE("many rows have the bits of few with scales of every magnitude that a row may have") {
  test::for_each_simd_target([] {
    constexpr size_t kRows = kernels::kRowsToUnpack;
    for (const GgmlType type : kTypes) {
      CAPTURE(std::string(name(type)));
      const Weights w(type, 256, 64);
      std::vector<float> x(kRows * w.n_in);
      std::mt19937 random(11);
      std::normal_distribution<float> normal;
      // A row has one magnitude, from the smallest that is not zero to near the largest.
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = std::ldexp(normal(random), static_cast<int>(i / w.n_in * 190 / kRows) - 80);
      const Rows rows(x, kRows, w.n_in);
      Scratch scratch(type, w.n_in, kRows);
      const auto few = multiply(w, rows.at, 0, kRows, false, 0.0f, 64);
      CHECK(differing(multiply(w, rows.at, 0, kRows, false, 0.0f, 64, &scratch), few) == 0);
      CHECK(std::all_of(few.begin(), few.end(), [](float y) { return std::isfinite(y); }));
    }
  });
}

TEST_CASE("rows are rounded to the nearest of 255 steps of their block, and their sums are exact") {
  test::for_each_simd_target([] {
    constexpr size_t kIn = 160;
    // Few rows, and a group of many and a part of one.
    for (const size_t n_rows : {size_t{5}, size_t{17}}) {
      CAPTURE(n_rows);
      const bool many = n_rows > kernels::kQuantizedGroup;
      auto x = activations(n_rows, kIn);
      x[40] = 1e30f;
      x[77] = -1e-30f;
      x[110] = std::numeric_limits<float>::max();
      const Rows rows(x, n_rows, kIn);
      double worst = 0.0;
      size_t wrong_scales = 0, wrong_sums = 0, wrong_origins = 0;
      std::set<const int8_t*> met;
      for (size_t of_x = 0; of_x < x.size() / 32; ++of_x) {
        const kernels::QuantizedBlock block =
            rows.at.block(of_x / (kIn / 32), of_x % (kIn / 32), kIn);
        REQUIRE(block.q >= reinterpret_cast<const int8_t*>(rows.memory.data()));
        REQUIRE(block.q + 32 <= reinterpret_cast<const int8_t*>(&rows.memory.back()));
        CHECK(met.insert(block.q).second);
        const double scale = double{*block.scale};
        int32_t halves[2] = {0, 0};
        double largest = 0.0;
        for (size_t i = 0; i < 32; ++i) {
          const int q = block.q[i];
          CHECK(std::abs(q) <= 127);
          halves[i / 16] += q;
          const double error = std::abs(scale * q - double{x[of_x * 32 + i]});
          worst = test::larger_or_nan(worst, scale > 0.0 ? error / scale : 0.0);
          largest = std::max(largest, std::abs(double{x[of_x * 32 + i]}));
        }
        const int sum = halves[0] + halves[1];
        wrong_sums += block.minus_half_sum[0] != -32 * halves[0];
        wrong_sums += block.minus_half_sum[1] != -32 * halves[1];
        wrong_sums += *block.minus_sum != -8 * sum;
        wrong_sums += *block.scaled_sum != *block.scale * static_cast<float>(sum);
        if (scale == 0.0) continue;
        // The next of 16 values per octave; a last bit of max / 127 may be rounded away.
        int exponent = 0;
        const double level = (2.0 * std::frexp(scale, &exponent) - 1.0) * 16.0;
        wrong_scales += level != std::floor(level) || level < 0.0 || level > 15.0;
        wrong_scales += scale < largest / 127.0 * (1.0 - 1e-7);
        wrong_scales += scale > largest / 127.0 * (1.0 + 1.0 / 16.0 + 1e-7);
        if (!many) continue;
        wrong_scales += level != *block.level;
        const double power = std::ldexp(1.0, exponent - 1 - 20);  // what an integer stands for
        wrong_origins += double{*block.origin} != 1.5 * std::ldexp(power, 23);
        const auto wrong_begin = [&](int32_t begin, int32_t n) {
          return double{std::bit_cast<float>(begin)} != double{*block.origin} - 128 * n * power;
        };
        wrong_origins += wrong_begin(*block.begin, sum);
        wrong_origins += wrong_begin(block.half_begin[0], halves[0]);
        wrong_origins += wrong_begin(block.half_begin[1], halves[1]);
      }
      CHECK(worst < 0.5 + 1e-4);
      CHECK(wrong_scales == 0);
      CHECK(wrong_sums == 0);
      CHECK(wrong_origins == 0);
      CHECK(*rows.at.block(0, 0, kIn).scale == 0.0f);                      // of zeros
      CHECK(*rows.at.block(n_rows - 1, kIn / 32 - 1, kIn).scale == 0.0f);  // of 2^-120
    }
  });
}

TEST_CASE("what rounding a row leaves is rounded once more: both have 16 bits") {
  test::for_each_simd_target([] {
    constexpr size_t kIn = 160;
    for (const size_t n_rows :
         {size_t{3}, size_t{8}, size_t{17}}) {  // the rests of 8 lie in two groups
      const size_t rest = n_rows == 17 ? 24 : n_rows, in_all = rest + n_rows;
      auto x = activations(n_rows, kIn);
      x[40] = 1e30f;
      x[77] = -1e-30f;
      x[100] = std::numeric_limits<float>::infinity();
      std::vector<std::byte> memory(kernels::quantized_rows_bytes(in_all, kIn));
      const kernels::QuantizedRows rows{memory.data(), kernels::quantized_group(in_all)};
      kernels::quantize_rows(x.data(), kIn, 0, n_rows, 0, kIn, kIn, rows);
      // In parts, as workers take them.
      kernels::quantize_rest(x.data(), kIn, 0, 2, kIn, rows, rest);
      kernels::quantize_rest(x.data() + 2 * kIn, kIn, 2, n_rows, kIn, rows, rest);
      size_t wrong = 0;
      for (size_t of_x = 0; of_x < x.size() / 32; ++of_x) {
        const size_t row = of_x / (kIn / 32), of_row = of_x % (kIn / 32);
        const auto upper = rows.block(row, of_row, kIn),
                   lower = rows.block(rest + row, of_row, kIn);
        const double scale = double{*upper.scale}, of_lower = double{*lower.scale};
        if (of_x == 100 / 32) {
          CHECK(std::isnan(scale));
          CHECK(std::isnan(of_lower));
          continue;
        }
        // The next of 16 values per octave, as of any row; below 2^-80 nothing is left.
        wrong += of_lower > scale / 2.0 / 127.0 * (1.0 + 1.0 / 16.0 + 1e-5);
        for (size_t i = 0; i < 32; ++i) {
          const double both = scale * upper.q[i] + of_lower * lower.q[i];
          const double bound = of_lower > 0.0 ? of_lower * (0.5 + 1e-3) : scale * 1e-6 + 0x1p-80;
          wrong += std::abs(both - double{x[of_x * 32 + i]}) > bound;
        }
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("what is not finite in a row is not finite in its products, and only there") {
  test::for_each_simd_target([] {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const GgmlType type : kTypes) {
        const Weights w(type, 256, 64);
        for (const size_t n_rows : {size_t{3}, kernels::kRowsToUnpack}) {
          auto x = activations(n_rows, w.n_in);
          x[w.n_in + 70] = bad;
          const Rows rows(x, n_rows, w.n_in);
          Scratch scratch(type, w.n_in, n_rows);
          const auto y = multiply(w, rows.at, 0, n_rows, false, 0.0f, 64, &scratch);
          size_t finite = 0, others = 0;
          for (size_t i = 0; i < y.size(); ++i)
            (i / 64 == 1 ? finite : others) += (i / 64 == 1) == std::isfinite(y[i]);
          CHECK(finite == 0);
          CHECK(others == 0);
        }
      }
    }
  });
}

TEST_CASE(
    "a panel for tiles holds each weight rounded to bf16, in pairs of inputs and two halves") {
  if (!kernels::has_tiled_rows()) {
    MESSAGE("SKIPPED: this CPU has no conversion to bf16");
    return;
  }
  for (const GgmlType type : kTypes) {
    CAPTURE(std::string(name(type)));
    for (const uint32_t blocks : {1u, 3u}) {
      const Weights w(type, blocks * block_elements(type), 64);
      std::vector<uint16_t> pairs(size_t{w.n_in} * 64 + 64, 0x7FFF);
      // Vectors are stored, 64 bytes each.
      auto* out =
          reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(pairs.data()) + 63) / 64 * 64);
      kernels::tile_quantized_panel(*quantized_type(type), w.panel.data(), w.n_in, out);
      size_t n_wrong = 0;
      for (size_t k = 0; k < w.n_in; ++k)
        for (size_t j = 0; j < 64; ++j) {
          // A last bit of f32 may be another than in values, which are rounded twice.
          const float want = w.values[j * w.n_in + k];
          const uint16_t got = out[((j / 32 * w.n_in + k) / 2 * 32 + j % 32) * 2 + k % 2];
          const float ulp = std::ldexp(std::abs(want), -23);
          n_wrong += got != f32_to_bf16(want) && got != f32_to_bf16(want - ulp) &&
                     got != f32_to_bf16(want + ulp);
        }
      CHECK(n_wrong == 0);
      CHECK(out[size_t{w.n_in} * 64] == 0x7FFF);
    }
  }
}

TEST_CASE(
    "panels take the bytes of their blocks, and up to 3 percent more where scales are packed") {
  for (const GgmlType type : kTypes) {
    CAPTURE(std::string(name(type)));
    const double file = 64.0 * 1024 / block_elements(type) * block_bytes(type);
    const auto panel =
        static_cast<double>(kernels::quantized_panel_bytes(*quantized_type(type), 1024));
    CHECK(panel >= file);
    CHECK(panel <= file * 1.03);
  }
  CHECK(!quantized_type(GgmlType::kF16));
  CHECK(!quantized_type(GgmlType::kQ2_K));
}
