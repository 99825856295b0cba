// Writing quantised blocks: an outside implementation's bytes, errors against bounds in double from
// an independent reading of the bytes, and numbers at the ends of what a block holds.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/model/gguf/quant.h"
#include "tests/core/model/encode_golden.h"

namespace {

using namespace kvasir;

constexpr GgmlType kWritten[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                                 GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kIQ4_NL,
                                 GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K};
constexpr size_t kBlock = 256;  // elements of one case: a block of every type, or eight

// ---- the oracle: a block's numbers read by the format's description, in double ----

double half_at(const uint8_t* at) {
  const uint32_t bits = at[0] | at[1] << 8;
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double mantissa = bits & 1023;
  REQUIRE(exponent != 31);  // neither infinite nor NaN
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

struct Element {
  double value;
  double step;       // between neighbours of the value
  double low, high;  // ends of the range of its group
};

Element evenly(double scale, double offset, int q, int most) {
  const double a = offset, b = offset + scale * most;
  return {offset + scale * q, std::fabs(scale), std::min(a, b), std::max(a, b)};
}

Element element_32(GgmlType type, const uint8_t* block, size_t i) {
  const double d = half_at(block);
  if (type == GgmlType::kQ8_0) {
    const int q = static_cast<int8_t>(block[2 + i]);
    return {d * q, d, -127 * d, 127 * d};
  }
  const bool five = type == GgmlType::kQ5_0 || type == GgmlType::kQ5_1;
  const bool offset = type == GgmlType::kQ4_1 || type == GgmlType::kQ5_1;
  const uint8_t* high = block + (offset ? 4 : 2);
  const uint8_t byte = (high + (five ? 4 : 0))[i % 16];
  int q = i < 16 ? byte & 15 : byte >> 4;
  if (five) q |= (high[i / 8] >> i % 8 & 1) << 4;
  if (type == GgmlType::kIQ4_NL) {
    constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
    const double widest = 24 * std::fabs(d);  // 89 to 113
    return {d * kLevels[q], widest, std::min(-127 * d, 113 * d), std::max(-127 * d, 113 * d)};
  }
  const int most = five ? 31 : 15;
  const double zero = offset ? half_at(block + 2) : -d * (five ? 16 : 8);
  return evenly(d, zero, q, most);
}

Element element_q45_k(bool five, const uint8_t* block, size_t i) {
  const size_t group = i / 32;
  const uint8_t* s = block + 4;
  const int scale = group < 4 ? s[group] & 63 : (s[group + 4] & 15) + (s[group - 4] >> 6) * 16;
  const int min = group < 4 ? s[group + 4] & 63 : (s[group + 4] >> 4) + (s[group] >> 6) * 16;
  const uint8_t byte = block[(five ? 48 : 16) + i / 64 * 32 + i % 32];
  int q = group % 2 ? byte >> 4 : byte & 15;
  if (five) q += (block[16 + i % 32] >> group & 1) * 16;
  return evenly(half_at(block) * scale, -half_at(block + 2) * min, q, five ? 31 : 15);
}

Element element_q6_k(const uint8_t* block, size_t i) {
  const uint8_t low = block[i / 128 * 64 + i % 64];
  const uint8_t high = block[128 + i / 128 * 32 + i % 32];
  const int q = (i % 128 < 64 ? low & 15 : low >> 4) + (high >> (i % 128 / 32 * 2) & 3) * 16;
  const double by = half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]);
  return evenly(by, -32 * by, q, 63);
}

Element element(GgmlType type, const uint8_t* bytes, size_t i) {
  const uint8_t* block = bytes + i / block_elements(type) * block_bytes(type);
  if (type == GgmlType::kQ4_K || type == GgmlType::kQ5_K)
    return element_q45_k(type == GgmlType::kQ5_K, block, i % 256);
  if (type == GgmlType::kQ6_K) return element_q6_k(block, i % 256);
  return element_32(type, block, i % 32);
}

// ---- inputs ----

std::vector<float> normal(size_t n, uint32_t seed, float deviation = 1.0f, float mean = 0.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> values(mean, deviation);
  std::vector<float> out(n);
  for (float& x : out) x = values(rng);
  return out;
}

std::vector<uint8_t> encode(GgmlType type, const std::vector<float>& x) {
  std::vector<uint8_t> bytes(x.size() / block_elements(type) * block_bytes(type), 0xA5);
  quantize(type, x.data(), bytes.data(), x.size());
  return bytes;
}

std::vector<float> decode(GgmlType type, const std::vector<uint8_t>& bytes, size_t n) {
  std::vector<float> out(n);
  dequantize(type, bytes.data(), out.data(), n);
  return out;
}

double largest(const std::vector<float>& x) {
  double out = 0.0;
  for (const double v : x) out = std::max(out, std::fabs(v));
  return out;
}

// Root of the mean squared error over that of the values.
double relative_error(GgmlType type, const std::vector<float>& x) {
  const std::vector<float> y = decode(type, encode(type, x), x.size());
  double error = 0.0, squares = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(double{y[i]} - x[i], 2);
    squares += std::pow(double{x[i]}, 2);
  }
  return std::sqrt(error / squares);
}

// What the product asks of any block: the bytes say what dequantize() reads, and no element is
// further from its number than half a step, or than the end of the range it lies beyond, plus
// what rounding the scale (and minimum) to f16 moves the whole range.
void check_nearest(GgmlType type, const std::vector<float>& x) {
  const std::vector<uint8_t> bytes = encode(type, x);
  const std::vector<float> y = decode(type, bytes, x.size());
  const double most = largest(x);
  const bool searched = type == GgmlType::kIQ4_NL || block_elements(type) == 256;
  for (size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CAPTURE(x[i]);
    const Element e = element(type, bytes.data(), i);
    REQUIRE(std::fabs(y[i] - e.value) <= 1e-6 * std::max(std::fabs(e.low), std::fabs(e.high)));
    const double beyond = std::max({0.0, e.low - x[i], x[i] - e.high});
    // The searched types round to the scales as stored. The others round to the exact scale: their
    // quants are off by 2^-11 of the range, or by its quants times half of the smallest half.
    const double stored = searched ? 1e-6 * most : most * 0x1p-11 * 2 + 128 * 0x1p-25;
    REQUIRE(std::fabs(e.value - x[i]) <= e.step / 2 + beyond + stored);
  }
}

}  // namespace

TEST_SUITE("core/model/encode") {
  TEST_CASE("blocks are those of another implementation") {
    for (const test::EncodeCase& given : test::kEncodeGolden) {
      CAPTURE(given.name);
      for (const test::EncodeGolden& golden : given.blocks) {
        CAPTURE(name(golden.type));
        CHECK(encode(golden.type, given.values) == golden.block);
      }
    }
  }

  TEST_CASE("every element becomes the nearest that its block holds") {
    for (const GgmlType type : kWritten) {
      CAPTURE(name(type));
      for (uint32_t seed = 0; seed < 20; ++seed) {
        check_nearest(type, normal(kBlock, seed));
        check_nearest(type, normal(kBlock, seed, 0.02f));
        check_nearest(type, normal(kBlock, seed, 0.1f, 5.0f));
        check_nearest(type, normal(kBlock, seed, 0.1f, -5.0f));
        std::vector<float> outlier = normal(kBlock, seed);
        outlier[seed * 11] = seed % 2 ? 300.0f : -300.0f;
        check_nearest(type, outlier);
        std::vector<float> groups = normal(kBlock, seed);  // of very different size
        for (size_t i = 0; i < kBlock; ++i) groups[i] *= std::exp2(-static_cast<float>(i / 16));
        check_nearest(type, groups);
      }
    }
  }

  TEST_CASE("the evenly spaced types lose half a step of their numbers' range") {
    // Steps that follow from the numbers alone; the centred types cut one end half a step short.
    for (uint32_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> x = normal(32, 100 + seed);
      const auto [low, high] = std::minmax_element(x.begin(), x.end());
      const double most = largest(x), span = double{*high} - *low;
      const std::map<GgmlType, double> bounds = {{GgmlType::kQ8_0, most / 127 / 2},
                                                 {GgmlType::kQ4_0, most / 8},
                                                 {GgmlType::kQ5_0, most / 16},
                                                 {GgmlType::kQ4_1, span / 15 / 2},
                                                 {GgmlType::kQ5_1, span / 31 / 2}};
      for (const auto& [type, bound] : bounds) {
        CAPTURE(name(type));
        const auto y = decode(type, encode(type, x), 32);
        for (size_t i = 0; i < 32; ++i)  // and the rounding of scale and minimum to f16
          REQUIRE(std::fabs(double{y[i]} - x[i]) <= bound + (span + most) * 0x1p-11);
      }
    }
  }

  TEST_CASE("the error on normal numbers is as stated, and falls with the bits") {
    // Root mean square over that of the numbers, rounded up in the third digit: the figures of
    // llama.cpp's reference encoders are 0.0861, 0.0783, 0.0762, 0.0715, 0.0428, 0.0379, 0.0362,
    // 0.0178 and 0.0054.
    const std::vector<std::pair<GgmlType, double>> stated = {
        {GgmlType::kQ4_0, 0.0870}, {GgmlType::kQ4_1, 0.0790}, {GgmlType::kIQ4_NL, 0.0770},
        {GgmlType::kQ4_K, 0.0725}, {GgmlType::kQ5_0, 0.0435}, {GgmlType::kQ5_1, 0.0385},
        {GgmlType::kQ5_K, 0.0364}, {GgmlType::kQ6_K, 0.0179}, {GgmlType::kQ8_0, 0.00545}};
    const std::vector<float> x = normal(256 * 400, 3);
    double before = 1.0;
    for (const auto& [type, most] : stated) {
      CAPTURE(name(type));
      const double error = relative_error(type, x);
      CHECK(error < most);
      CHECK(error > 0.95 * most);  // better than stated: state it
      CHECK(error < before);
      before = error;
    }
  }

  TEST_CASE("zeros of both signs, constants and single numbers") {
    for (const GgmlType type : kWritten) {
      CAPTURE(name(type));
      const std::vector<float> zeros(kBlock, 0.0f), negative(kBlock, -0.0f);
      CHECK(decode(type, encode(type, zeros), kBlock) == zeros);
      CHECK(decode(type, encode(type, negative), kBlock) == zeros);
      for (const float value : {1.0f, -1.0f, 0.1f, -3e4f, 1e-4f, -1e-7f}) {
        CAPTURE(value);
        const std::vector<float> constant(kBlock, value);
        check_nearest(type, constant);
        // Zero or the value is a level of every fit: what is left is rounding the scale, to f16 and
        // to the integers of a K block.
        const auto y = decode(type, encode(type, constant), kBlock);
        for (const float v : y)
          REQUIRE(std::fabs(v - value) <= std::fabs(value) / 64 + 128 * 0x1p-25f);
        std::vector<float> single(kBlock, 0.0f);
        single[77] = value;
        check_nearest(type, single);
      }
    }
  }

  TEST_CASE("numbers down to the smallest and up to the largest") {
    constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
    for (const GgmlType type : kWritten) {
      CAPTURE(name(type));
      for (const float size : {kDenormal, 1e-42f, 1e-38f, 1e-30f, 1e-12f, 0x1p-26f, 0x1p-25f, 1e-7f,
                               1e-6f, 1e-5f, 1e4f, 65504.0f}) {
        CAPTURE(size);
        std::vector<float> x = normal(kBlock, 9);
        const auto most = static_cast<float>(largest(x));
        for (float& v : x) v = std::clamp(v / most, -1.0f, 1.0f) * size;
        check_nearest(type, x);
        const auto y = decode(type, encode(type, x), kBlock);
        // No number grows by more than a scale's rounding, and none becomes infinite or NaN.
        for (const float v : y) REQUIRE(std::fabs(v) <= size * 1.2f + 160 * 0x1p-25f);
      }
    }
  }

  TEST_CASE("what is not finite or too large is refused, and where it lies is said") {
    const auto message = [](GgmlType type, float value) -> std::string {
      std::vector<float> x = normal(kBlock, 1);
      x[100] = value;
      std::vector<uint8_t> bytes(4 * kBlock);
      try {
        quantize(type, x.data(), bytes.data(), kBlock, {"blk.0.ffn_up.weight", 512});
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::kInput);
        return e.what();
      }
      return "";
    };
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<GgmlType> types(std::begin(kWritten), std::end(kWritten));
    types.push_back(GgmlType::kF16);
    for (const GgmlType type : types) {
      CAPTURE(name(type));
      const std::string where = "tensor \"blk.0.ffn_up.weight\": element 612 is ";
      CHECK(message(type, std::nanf("")) == where + "nan, which " + name(type) +
                                                " does not hold; the weights are damaged, convert "
                                                "the model again");
      CHECK(message(type, kInfinity).starts_with(where + "inf, which"));
      CHECK(message(type, -kInfinity).starts_with(where + "-inf, which"));
      CHECK(message(type, -1e6f) ==
            where + "-1e+06, beyond what " + name(type) + " holds (65504); choose BF16 or F32");
      CHECK(message(type, 65504.0f).empty());
      CHECK(message(type, 65519.0f).empty());  // rounds to it
      CHECK_FALSE(message(type, 65520.0f).empty());
    }
    CHECK(message(GgmlType::kBF16, 3e38f).empty());
    CHECK(message(GgmlType::kBF16, 3.4e38f).ends_with("choose F32"));
    CHECK_FALSE(message(GgmlType::kBF16, std::nanf("")).empty());
    CHECK(message(GgmlType::kF32, std::nanf("")).empty());  // copied as it is
  }
}
