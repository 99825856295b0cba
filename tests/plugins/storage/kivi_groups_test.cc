// Codes of 2 and 4 bits per channel and per token, beside an account in double.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/kivi/groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/convert.h"
#include "kernels/reference/attention.h"

namespace {
using namespace kvasir;
using kivi::RowShape;

double half(uint16_t bits) {
  return kernels::reference::element(&bits, 0, kernels::ElementType::kF16);
}
std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  kernels::convert_from_f32(kernels::ElementType::kF16, x.data(), out.data(), x.size());
  return out;
}
// What comes back of rows that lie one behind the other.
std::vector<uint16_t> through(const RowShape& s, const std::vector<uint16_t>& rows) {
  std::vector<std::byte> codes(s.bytes(), std::byte{0xff});
  std::vector<uint16_t> out(rows.size());
  kivi::RowScratch scratch;
  kivi::quantise(s, rows.data(), s.dim, codes.data(), scratch);
  kivi::expand(s, codes.data(), out.data(), s.dim, scratch);
  return out;
}
std::vector<double> values(const RowShape& s, const std::vector<float>& x) {
  std::vector<double> out;
  for (const uint16_t bits : through(s, halves(x))) out.push_back(half(bits));
  return out;
}

struct Group {
  double low, high;
};
// Of the group of an element, by its definition.
Group group_of(const RowShape& s, const std::vector<uint16_t>& rows, uint32_t token, uint32_t c) {
  Group out{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (uint32_t i = 0; i < s.group_size; ++i) {
    const uint32_t t = s.per_channel ? token / s.group_size * s.group_size + i : token;
    const uint32_t d = s.per_channel ? c : c / s.group_size * s.group_size + i;
    out.low = std::min(out.low, half(rows[t * s.dim + d]));
    out.high = std::max(out.high, half(rows[t * s.dim + d]));
  }
  return out;
}

std::vector<RowShape> shapes() {
  std::vector<RowShape> out;
  for (const uint32_t group : {32u, 64u, 128u})
    for (const uint32_t bits : {2u, 4u}) {
      out.push_back({2 * group, 36, group, bits, true});
      out.push_back({5, 2 * group, group, bits, false});
    }
  return out;
}

}  // namespace

TEST_SUITE("plugins/storage/kivi_groups") {
  TEST_CASE("K is quantised per channel, V per token, as the paper's formula has it") {
    const double inf = std::numeric_limits<double>::infinity();
    // Channels: levels that are hit, a constant, a step of 1 from -1, one that is not finite.
    const std::vector<float> k = {0, 5, -1,   0,  //
                                  1, 5, 0.2f, 1,  //
                                  2, 5, 0.6f, 2,  //
                                  3, 5, 2,    std::numeric_limits<float>::infinity()};
    const std::vector<double> got = values({4, 4, 4, 2, true}, k);
    const std::vector<double> want = {0, 5, -1, 0, 1, 5, 0, 1, 2, 5, 1, 2, 3, 5, 2, inf};
    for (size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      if (i % 4 == 3)
        CHECK(std::isnan(got[i]));
      else
        CHECK(got[i] == want[i]);
    }
    // One token, two groups of four channels: each has its own scale.
    CHECK(values({1, 8, 4, 2, false}, {-1, 0.2f, 0.6f, 2, 7, 7, 7, 7}) ==
          std::vector<double>{-1, 0, 1, 2, 7, 7, 7, 7});
    // Half way: to the even code.
    CHECK(values({1, 4, 4, 2, false}, {0, 0.5f, 1.5f, 3}) == std::vector<double>{0, 0, 2, 3});
    CHECK(values({1, 4, 4, 4, false}, {0, 4, 7, 15}) == std::vector<double>{0, 4, 7, 15});
  }

  TEST_CASE("an element is off by half a step at most, and is the nearest level") {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const RowShape& s : shapes()) {
      CAPTURE(s.bits);
      CAPTURE(s.group_size);
      CAPTURE(s.per_channel);
      std::vector<float> x(s.n_tokens * s.dim);
      for (uint32_t i = 0; i < x.size(); ++i)  // channels of very different size
        x[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i % s.dim % 13) - 6);
      const std::vector<uint16_t> rows = halves(x), got = through(s, rows);
      const uint32_t most = (1u << s.bits) - 1;
      for (uint32_t i = 0; i < x.size(); ++i) {
        const Group g = group_of(s, rows, i / s.dim, i % s.dim);
        const double step = (g.high - g.low) / most;
        // A level, rounded to f16, and that within half a step.
        const double level = g.low + std::nearbyint((half(got[i]) - g.low) / step) * step;
        const double rounding = std::ldexp(std::max(std::fabs(level), 0x1p-14), -11) * 1.001;
        CHECK(std::fabs(half(got[i]) - level) <= rounding);
        CHECK(std::fabs(level - half(rows[i])) <= 0.5 * step * (1 + 1e-9));
      }
      // 2 bits in groups of 32 take 3 per element, 4 bits in groups of 64 take 4.5.
      CHECK(s.bytes() * 8 == s.n_tokens * s.dim * (s.bits + 32.0 / s.group_size));
    }
  }

  TEST_CASE("rows that came back stay the same when they are quantised again") {
    std::mt19937 random(5);
    for (const RowShape& s : shapes())
      for (int kind = 0; kind < 6; ++kind) {
        CAPTURE(s.bits);
        CAPTURE(kind);
        std::vector<uint16_t> rows(s.n_tokens * s.dim);
        for (uint16_t& bits : rows) {
          const auto any = static_cast<uint16_t>(random());
          const auto few = static_cast<uint16_t>(random() % 7);
          if (kind == 0) bits = any & 0xfbff;                                 // any finite one
          if (kind == 1) bits = static_cast<uint16_t>(0x3c00 + few);          // a few ulps apart
          if (kind == 2) bits = static_cast<uint16_t>(few | (any & 0x8000));  // subnormal
          if (kind == 3) bits = static_cast<uint16_t>(0x7bf0 + few);          // near the largest
          if (kind == 4) bits = 0x4248;                                       // constant
          if (kind == 5) bits = static_cast<uint16_t>(0x3ffd + few);          // across a power of 2
        }
        const std::vector<uint16_t> once = through(s, rows);
        CHECK(through(s, once) == once);
        for (const uint16_t bits : once) CHECK(std::isfinite(half(bits)));
      }
  }

  TEST_CASE("rows further apart than they are long are read and written there alone") {
    const RowShape s{32, 8, 32, 2, true};
    std::vector<uint16_t> rows(32 * 11, 0x7c01);  // NaN between them
    std::vector<uint16_t> packed;
    for (uint32_t t = 0; t < 32; ++t)
      for (uint32_t c = 0; c < 8; ++c)
        packed.push_back(rows[t * 11 + c] = static_cast<uint16_t>(0x3c00 + t * 8 + c));
    std::vector<std::byte> codes(s.bytes() + 1, std::byte{0x5a});
    kivi::RowScratch scratch;
    kivi::quantise(s, rows.data(), 11, codes.data(), scratch);
    CHECK(codes.back() == std::byte{0x5a});
    kivi::expand(s, codes.data(), rows.data(), 11, scratch);
    const std::vector<uint16_t> want = through(s, packed);
    for (uint32_t t = 0; t < 32; ++t)
      for (uint32_t c = 0; c < 11; ++c)
        CHECK(rows[t * 11 + c] == (c < 8 ? want[t * 8 + c] : 0x7c01));
  }
}
