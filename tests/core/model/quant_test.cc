// Dequantising and quantising: blocks packed here field by field, an outside implementation's
// values, and the same real model in several types.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/quant.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/model/gguf/float16.h"
#include "core/model/gguf/gguf.h"
#include "tests/core/model/quant_golden.h"
#include "tests/support/data.h"

namespace {

using namespace kvasir;

// ---- the oracle: numbers of a block, packed by the format's description; values in double ----

struct Block {
  std::vector<uint8_t> bytes;
  std::vector<double> values;
};

struct Half {
  uint16_t bits;
  double value;
};
// A half with the given exponent field and mantissa, by the definition.
Half make_half(bool negative, uint32_t exponent, uint32_t mantissa) {
  const double m = exponent == 0 ? mantissa / 1024.0 : 1.0 + mantissa / 1024.0;
  const double v = std::ldexp(m, exponent == 0 ? -14 : static_cast<int>(exponent) - 15);
  return {static_cast<uint16_t>(negative << 15 | exponent << 10 | mantissa), negative ? -v : v};
}

class Packer {
 public:
  explicit Packer(uint32_t seed) : rng_(seed) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  Half half() { return make_half(below(2), 5 + below(8), below(1024)); }
  static void put(std::vector<uint8_t>& bytes, size_t at, Half h) {
    bytes[at] = static_cast<uint8_t>(h.bits & 255);
    bytes[at + 1] = static_cast<uint8_t>(h.bits >> 8);
  }
  // ORs `value` into the byte at `at`, `shift` bits up.
  static void bits(std::vector<uint8_t>& bytes, size_t at, uint32_t value, uint32_t shift) {
    bytes.at(at) = static_cast<uint8_t>(bytes[at] | value << shift);
  }

 private:
  std::mt19937 rng_;
};

// Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: 32 elements in nibbles, fifth bits and an offset where there are.
Block pack_small(GgmlType type, uint32_t seed) {
  constexpr double kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
  const bool five = type == GgmlType::kQ5_0 || type == GgmlType::kQ5_1;
  const bool offset = type == GgmlType::kQ4_1 || type == GgmlType::kQ5_1;
  const size_t high_at = offset ? 4 : 2;
  const size_t low_at = high_at + (five ? 4 : 0);
  Packer packer(seed);
  Block block{std::vector<uint8_t>(low_at + 16), std::vector<double>(32)};
  const Half d = packer.half();
  const Half m = offset ? packer.half() : Half{0, 0.0};
  Packer::put(block.bytes, 0, d);
  if (offset) Packer::put(block.bytes, 2, m);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t q = packer.below(five ? 32 : 16);
    Packer::bits(block.bytes, low_at + i % 16, q & 15, i < 16 ? 0 : 4);
    if (five) Packer::bits(block.bytes, high_at + i / 8, q >> 4, i % 8);
    const double centred = q - (offset ? 0.0 : five ? 16.0 : 8.0);
    block.values[i] = d.value * (type == GgmlType::kIQ4_NL ? kLevels[q] : centred) + m.value;
  }
  return block;
}

Block pack_q8_0(uint32_t seed) {
  Packer packer(seed);
  Block block{std::vector<uint8_t>(34), {}};
  const Half d = packer.half();
  Packer::put(block.bytes, 0, d);
  for (size_t i = 0; i < 32; ++i) {
    const int q = static_cast<int>(packer.below(256)) - 128;
    block.bytes[2 + i] = static_cast<uint8_t>(q);
    block.values.push_back(d.value * q);
  }
  return block;
}

Block pack_q2_k(uint32_t seed) {
  Packer packer(seed);
  Block block{std::vector<uint8_t>(84), {}};
  const Half d = packer.half(), dmin = packer.half();
  Packer::put(block.bytes, 80, d);
  Packer::put(block.bytes, 82, dmin);
  uint32_t scale = 0, min = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    if (i % 16 == 0) {
      scale = packer.below(16);
      min = packer.below(16);
      block.bytes[i / 16] = static_cast<uint8_t>(scale + 16 * min);
    }
    const uint32_t q = packer.below(4);
    // 128 elements share 32 bytes, 32 of them each two bits of every byte.
    Packer::bits(block.bytes, 16 + (i / 128) * 32 + i % 32, q, i % 128 / 32 * 2);
    block.values.push_back(d.value * scale * q - dmin.value * min);
  }
  return block;
}

Block pack_q3_k(uint32_t seed) {
  Packer packer(seed);
  Block block{std::vector<uint8_t>(110), {}};
  const Half d = packer.half();
  Packer::put(block.bytes, 108, d);
  int scale = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    if (i % 16 == 0) {
      const uint32_t group = i / 16;
      const uint32_t s = packer.below(64);
      scale = static_cast<int>(s) - 32;
      Packer::bits(block.bytes, 96 + group % 8, s & 15, group < 8 ? 0 : 4);
      Packer::bits(block.bytes, 104 + group % 4, s >> 4, group / 4 * 2);
    }
    const uint32_t q = packer.below(8);  // stands for q - 4
    Packer::bits(block.bytes, 32 + (i / 128) * 32 + i % 32, q & 3, i % 128 / 32 * 2);
    Packer::bits(block.bytes, i % 32, q >> 2, i / 32);
    block.values.push_back(d.value * scale * (static_cast<int>(q) - 4));
  }
  return block;
}

// Q4_K and Q5_K differ in the 32 bytes of fifth bits.
Block pack_q45_k(bool five, uint32_t seed) {
  Packer packer(seed);
  const size_t low_at = five ? 48 : 16;
  Block block{std::vector<uint8_t>(low_at + 128), {}};
  const Half d = packer.half(), dmin = packer.half();
  Packer::put(block.bytes, 0, d);
  Packer::put(block.bytes, 2, dmin);
  uint32_t scale = 0, min = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    const uint32_t group = i / 32;
    if (i % 32 == 0) {
      scale = packer.below(64);
      min = packer.below(64);
      const size_t s = 4;  // first of the 12 bytes of scales
      if (group < 4) {
        Packer::bits(block.bytes, s + group, scale, 0);
        Packer::bits(block.bytes, s + 4 + group, min, 0);
      } else {
        Packer::bits(block.bytes, s + 4 + group, scale & 15, 0);
        Packer::bits(block.bytes, s + 4 + group, min & 15, 4);
        Packer::bits(block.bytes, s + group - 4, scale >> 4, 6);
        Packer::bits(block.bytes, s + group, min >> 4, 6);
      }
    }
    const uint32_t q = packer.below(five ? 32 : 16);
    Packer::bits(block.bytes, low_at + i / 64 * 32 + i % 32, q & 15, group % 2 ? 4 : 0);
    if (five) Packer::bits(block.bytes, 16 + i % 32, q >> 4, group);
    block.values.push_back(d.value * scale * q - dmin.value * min);
  }
  return block;
}

Block pack_q6_k(uint32_t seed) {
  Packer packer(seed);
  Block block{std::vector<uint8_t>(210), {}};
  const Half d = packer.half();
  Packer::put(block.bytes, 208, d);
  int scale = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    if (i % 16 == 0) {
      scale = static_cast<int>(packer.below(256)) - 128;
      block.bytes[192 + i / 16] = static_cast<uint8_t>(scale);
    }
    const uint32_t q = packer.below(64);
    Packer::bits(block.bytes, i / 128 * 64 + i % 64, q & 15, i % 128 < 64 ? 0 : 4);
    Packer::bits(block.bytes, 128 + i / 128 * 32 + i % 32, q >> 4, i % 128 / 32 * 2);
    block.values.push_back(d.value * scale * (static_cast<int>(q) - 32));
  }
  return block;
}

Block pack(GgmlType type, uint32_t seed) {
  switch (type) {
    case GgmlType::kQ8_0:
      return pack_q8_0(seed);
    case GgmlType::kQ2_K:
      return pack_q2_k(seed);
    case GgmlType::kQ3_K:
      return pack_q3_k(seed);
    case GgmlType::kQ4_K:
      return pack_q45_k(false, seed);
    case GgmlType::kQ5_K:
      return pack_q45_k(true, seed);
    case GgmlType::kQ6_K:
      return pack_q6_k(seed);
    default:
      return pack_small(type, seed);
  }
}

constexpr GgmlType kBlockTypes[] = {GgmlType::kQ4_0, GgmlType::kQ4_1,  GgmlType::kQ5_0,
                                    GgmlType::kQ5_1, GgmlType::kQ8_0,  GgmlType::kQ2_K,
                                    GgmlType::kQ3_K, GgmlType::kQ4_K,  GgmlType::kQ5_K,
                                    GgmlType::kQ6_K, GgmlType::kIQ4_NL};

double largest(const std::vector<double>& values) {
  double out = 0.0;
  for (const double v : values) out = std::max(out, std::fabs(v));
  return out;
}

std::vector<float> random_values(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

std::vector<float> round_trip(GgmlType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() / block_elements(type) * block_bytes(type));
  std::vector<float> out(values.size());
  quantize(type, values.data(), bytes.data(), values.size());
  dequantize(type, bytes.data(), out.data(), values.size());
  return out;
}

std::vector<float> values_of(const GgufFile& file, const std::string& tensor_name) {
  const GgufTensor& tensor = file.tensor(tensor_name);
  std::vector<float> out(tensor.n_elements);
  dequantize(tensor.type, tensor.data, out.data(), out.size());
  return out;
}

}  // namespace

TEST_SUITE("core/model/quant") {
  TEST_CASE("a block packed field by field decodes to the values of its fields") {
    for (const GgmlType type : kBlockTypes) {
      CAPTURE(name(type));
      for (uint32_t seed = 0; seed < 50; ++seed) {
        // Two blocks, one behind the other, at an odd address: files do not promise alignment
        // within a tensor.
        const Block a = pack(type, 2 * seed), b = pack(type, 2 * seed + 1);
        REQUIRE(a.bytes.size() == block_bytes(type));
        REQUIRE(a.values.size() == block_elements(type));
        std::vector<uint8_t> bytes(1);
        bytes.insert(bytes.end(), a.bytes.begin(), a.bytes.end());
        bytes.insert(bytes.end(), b.bytes.begin(), b.bytes.end());
        std::vector<float> got(2 * a.values.size());
        dequantize(type, bytes.data() + 1, got.data(), got.size());
        // A few f32 roundings of terms no larger than the scale terms of the block.
        const double tolerance = 1e-5 * std::max(largest(a.values), largest(b.values));
        for (size_t i = 0; i < got.size(); ++i) {
          const double want = i < a.values.size() ? a.values[i] : b.values[i - a.values.size()];
          REQUIRE(std::fabs(got[i] - want) <= tolerance);
        }
      }
    }
  }

  TEST_CASE("blocks decode to the values another implementation gives") {
    REQUIRE(test::kQuantGolden.size() == std::size(kBlockTypes));
    for (const test::QuantGolden& golden : test::kQuantGolden) {
      CAPTURE(name(golden.type));
      REQUIRE(golden.block.size() == block_bytes(golden.type));
      std::vector<float> got(golden.values.size());
      dequantize(golden.type, golden.block.data(), got.data(), got.size());
      const double most = largest({golden.values.begin(), golden.values.end()});
      for (size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        REQUIRE(std::fabs(double{got[i]} - golden.values[i]) <= 1e-6 * most);
      }
    }
  }

  TEST_CASE("every half decodes by the definition and encodes to itself") {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
      const float got = f16_to_f32(static_cast<uint16_t>(bits));
      if (exponent < 31) {
        REQUIRE(double{got} == make_half(bits >> 15, exponent, mantissa).value);
        REQUIRE(f32_to_f16(got) == bits);
      } else if (mantissa == 0) {
        REQUIRE(std::isinf(got));
        REQUIRE(f32_to_f16(got) == bits);
      } else {
        REQUIRE(std::isnan(got));
        REQUIRE(std::isnan(f16_to_f32(f32_to_f16(got))));
      }
    }
  }

  TEST_CASE("halves and bfloat16 round to the nearest, ties to even") {
    // Between neighbours a and b = a + step: below the middle to a, above to b, middle to even.
    for (uint32_t bits = 0; bits < 0x7BFF; bits += 7) {
      const double a = f16_to_f32(static_cast<uint16_t>(bits));
      const double b = f16_to_f32(static_cast<uint16_t>(bits + 1));
      REQUIRE(f32_to_f16(static_cast<float>(a + 0.49 * (b - a))) == bits);
      REQUIRE(f32_to_f16(static_cast<float>(a + 0.51 * (b - a))) == bits + 1);
      REQUIRE(f32_to_f16(static_cast<float>(a + 0.5 * (b - a))) == (bits % 2 ? bits + 1 : bits));
    }
    CHECK(f32_to_f16(65519.0f) == 0x7BFF);
    CHECK(f32_to_f16(65520.0f) == 0x7C00);
    CHECK(f32_to_f16(1e30f) == 0x7C00);
    for (uint32_t bits = 0x0080; bits < 0x7F7F; bits += 7) {
      const double a = bf16_to_f32(static_cast<uint16_t>(bits));
      const double b = bf16_to_f32(static_cast<uint16_t>(bits + 1));
      REQUIRE(f32_to_bf16(static_cast<float>(a + 0.49 * (b - a))) == bits);
      REQUIRE(f32_to_bf16(static_cast<float>(a + 0.51 * (b - a))) == bits + 1);
      REQUIRE(f32_to_bf16(static_cast<float>(a + 0.5 * (b - a))) == (bits % 2 ? bits + 1 : bits));
    }
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
    CHECK(std::isinf(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::infinity()))));
  }

  TEST_CASE("quantising loses no more than half a step") {
    const auto values = random_values(32 * 200, 5);
    CHECK(round_trip(GgmlType::kF32, values) == values);
    const auto half = round_trip(GgmlType::kF16, values);
    const auto brain = round_trip(GgmlType::kBF16, values);
    const auto eight = round_trip(GgmlType::kQ8_0, values);
    const auto four = round_trip(GgmlType::kQ4_0, values);
    for (size_t block = 0; block < values.size(); block += 32) {
      double most = 0.0;
      for (size_t i = block; i < block + 32; ++i)
        most = std::max(most, std::fabs(double{values[i]}));
      for (size_t i = block; i < block + 32; ++i) {
        const double v = values[i];
        REQUIRE(std::fabs(half[i] - v) <= std::fabs(v) * 0x1p-11 + 0x1p-25);
        REQUIRE(std::fabs(brain[i] - v) <= std::fabs(v) * 0x1p-8);
        // Half a step, and the rounding of the scale to f16 over the whole range.
        REQUIRE(std::fabs(eight[i] - v) <= most / 127 * 0.5 + most * 0x1p-11);
        // A step is most / 8; the end opposite to the extreme value is clamped one step short.
        REQUIRE(std::fabs(four[i] - v) <= most / 8 * 1.0 + most * 0x1p-11);
        if (std::fabs(v) < most * 0.8)
          REQUIRE(std::fabs(four[i] - v) <= most / 8 * 0.5 + most * 0x1p-11);
      }
    }
  }

  TEST_CASE("a block of zeros stays zero") {
    const std::vector<float> zeros(32, 0.0f);
    for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0})
      CHECK(round_trip(type, zeros) == zeros);
  }

  TEST_CASE("what cannot be converted is refused by name") {
    std::vector<float> values(64);
    std::vector<std::byte> bytes(1024);
    CHECK_THROWS_WITH_AS(dequantize(static_cast<GgmlType>(16), bytes.data(), values.data(), 0),
                         "tensors of type IQ2_XXS cannot be read", Error);
    CHECK_THROWS_WITH_AS(quantize(GgmlType::kQ2_K, values.data(), bytes.data(), 0),
                         "tensors of type Q2_K cannot be written; choose F32, F16, BF16, Q8_0, "
                         "Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q4_K, Q5_K or Q6_K",
                         Error);
    CHECK_THROWS_AS(dequantize(GgmlType::kQ8_0, bytes.data(), values.data(), 33), Error);
  }

  TEST_CASE("type names and numbers") {
    CHECK(ggml_type_by_name("q4_k") == GgmlType::kQ4_K);
    CHECK(ggml_type_by_name("BF16") == GgmlType::kBF16);
    CHECK_FALSE(ggml_type_by_name("Q4").has_value());
    CHECK(std::string(name(static_cast<GgmlType>(99))) == "type 99");
    CHECK(is_supported(GgmlType::kIQ4_NL));
    CHECK_FALSE(is_supported(static_cast<GgmlType>(16)));
    CHECK_FALSE(is_supported(static_cast<GgmlType>(99)));
  }

  KVASIR_DATA_TEST_CASE(
      "a real model's twins agree with its f32 weights, and are quantised alike") {
    KVASIR_REQUIRE_DATA(data);
    const auto open = [&](const std::string& type) {
      return GgufFile::open((data / "models" / ("babyllama-tok361." + type + ".gguf")).string());
    };
    const GgufFile full = open("f32");
    for (const char* type_name : {"F16", "Q8_0", "Q4_0"}) {
      CAPTURE(type_name);
      const GgufFile twin = open(type_name);
      const GgmlType type = *ggml_type_by_name(type_name);
      size_t n_compared = 0;
      for (const GgufTensor& tensor : twin.tensors()) {
        if (tensor.type != type) continue;
        CAPTURE(tensor.name);
        ++n_compared;
        const auto want = values_of(full, tensor.name);
        const auto got = values_of(twin, tensor.name);
        REQUIRE(got.size() == want.size());
        const double steps = type == GgmlType::kQ8_0 ? 0.5 / 127 : 1.0 / 8;
        for (size_t begin = 0; begin < want.size(); begin += 32) {
          double most = 0.0;
          for (size_t i = begin; i < begin + 32; ++i)
            most = std::max(most, std::fabs(double{want[i]}));
          for (size_t i = begin; i < begin + 32; ++i) {
            const double bound = type == GgmlType::kF16 ? std::fabs(want[i]) * 0x1p-11 + 0x1p-25
                                                        : most * (steps + 0x1p-10);
            REQUIRE(std::fabs(double{got[i]} - want[i]) <= bound);
          }
        }
        // llama.cpp's quantiser made the twin: ours gives the same bytes.
        std::vector<std::byte> ours(tensor.n_bytes);
        quantize(type, want.data(), ours.data(), want.size());
        CHECK(std::memcmp(ours.data(), tensor.data, ours.size()) == 0);
      }
      CHECK(n_compared >= 36);  // 7 matrices in each of 5 layers, and the embedding
    }
  }
}
