// Element conversion: exhaustive where it can be, against the definition of the formats.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/convert.h"

#include <limits>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::ElementType;

bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

}  // namespace

TEST_SUITE("kernels/convert") {
  TEST_CASE("all 65,536 patterns widen exactly and narrow back to themselves") {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
      test::for_each_simd_target([&] {
        std::vector<float> wide(bits.size());
        kernels::convert_to_f32(type, bits.data(), wide.data(), bits.size());
        std::vector<uint16_t> back(bits.size());
        kernels::convert_from_f32(type, wide.data(), back.data(), wide.size());
        size_t wrong = 0;
        for (size_t i = 0; i < bits.size(); ++i) {
          const double value = kernels::reference::element(bits.data(), i, type);
          const bool ok = same(wide[i], value) && (std::isnan(value) || back[i] == bits[i]) &&
                          same(kernels::reference::element(back.data(), i, type), value);
          if (!ok) ++wrong;
        }
        CHECK(wrong == 0);
      });
    }
  }

  TEST_CASE("fp8_e4m3: all 256 codes widen exactly, and narrow back to themselves") {
    std::vector<uint8_t> codes(256);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
    test::for_each_simd_target([&] {
      std::vector<float> wide(codes.size());
      kernels::convert_to_f32(ElementType::kFp8E4M3, codes.data(), wide.data(), codes.size());
      std::vector<uint8_t> back(codes.size());
      kernels::convert_from_f32(ElementType::kFp8E4M3, wide.data(), back.data(), wide.size());
      for (size_t i = 0; i < codes.size(); ++i) {
        CAPTURE(i);
        const double value = kernels::reference::element(codes.data(), i, ElementType::kFp8E4M3);
        CHECK(same(wide[i], value));
        CHECK((std::isnan(value) ? (back[i] & 0x7f) == 0x7f : back[i] == codes[i]));
      }
    });
    // The format's own table (arXiv:2209.05433, table 1).
    const auto value = [](uint8_t code) {
      return kernels::reference::element(&code, 0, ElementType::kFp8E4M3);
    };
    CHECK(value(0x01) == 0x1p-9);
    CHECK(value(0x07) == 0.875 * 0x1p-6);
    CHECK(value(0x08) == 0x1p-6);
    CHECK(value(0x38) == 1.0);
    CHECK(value(0x7e) == 448.0);
    CHECK(value(0xfe) == -448.0);
    CHECK(std::isnan(value(0x7f)));
    CHECK(std::isnan(value(0xff)));
  }

  TEST_CASE("fp8_e4m3: every half, and its neighbours in f32, become the nearest code") {
    std::vector<float> in;
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const auto x = static_cast<float>(kernels::reference::element(&bits, 0, ElementType::kF16));
      for (const float near : {x, std::nextafter(x, INFINITY), std::nextafter(x, -INFINITY)})
        in.push_back(near);
    }
    for (const float x : {464.0f, 465.0f, 1e30f, 0x1p-10f, 0x1.8p-9f, 0x1p-11f, 1e-40f}) {
      in.push_back(x);
      in.push_back(-x);
    }
    // By distance to all codes: nearest, and of two as near the even one.
    const auto nearest = [](double x) {
      uint8_t best = 0;
      double off = INFINITY;
      for (uint8_t code = 0; code < 0x7f; ++code) {
        const double d =
            std::fabs(kernels::reference::element(&code, 0, ElementType::kFp8E4M3) - std::fabs(x));
        if (d < off || (d == off && code % 2 == 0)) {
          best = code;
          off = d;
        }
      }
      return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
    };
    std::vector<uint8_t> want;
    for (const float x : in)
      want.push_back(std::isfinite(x) ? nearest(x)
                                      : static_cast<uint8_t>(std::signbit(x) ? 0xff : 0x7f));
    test::for_each_simd_target([&] {
      std::vector<uint8_t> out(in.size());
      kernels::convert_from_f32(ElementType::kFp8E4M3, in.data(), out.data(), in.size());
      size_t wrong = 0, other_nan = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        if (!std::isfinite(in[i]))
          other_nan += (out[i] & 0x7f) != 0x7f;
        else
          wrong += out[i] != want[i];
      }
      CHECK(wrong == 0);
      CHECK(other_nan == 0);
      for (size_t i = 0; i < in.size(); i += 97)
        if (std::isfinite(in[i]))
          CHECK(kernels::reference::element(out.data(), i, ElementType::kFp8E4M3) ==
                kernels::reference::round_to(in[i], ElementType::kFp8E4M3));
    });
  }

  TEST_CASE("rounding is to nearest, ties to even, overflow to infinity") {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> in = {
        0.0f,           -0.0f,         65504.0f,   65519.9f, 65520.0f, 65536.0f,     -1e30f,
        0x1p-24f,       0x1p-25f,      0x1.8p-25f, 0x1p-26f, 0x1p-14f, 0x1.ffcp-15f, 1.00048828125f,
        1.00146484375f, 3.3895314e38f, 3.4e38f,    inf,      -inf};
    for (const float scale : {1e-8f, 1e-5f, 1.0f, 3e4f, 1e37f}) {
      const auto more = test::random_floats(997, scale, 501);
      in.insert(in.end(), more.begin(), more.end());
    }
    for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
      test::for_each_simd_target([&] {
        std::vector<uint16_t> out(in.size());
        kernels::convert_from_f32(type, in.data(), out.data(), in.size());
        size_t wrong = 0;
        for (size_t i = 0; i < in.size(); ++i) {
          const double expected = kernels::reference::round_to(in[i], type);
          if (!same(kernels::reference::element(out.data(), i, type), expected)) ++wrong;
        }
        CHECK(wrong == 0);
      });
    }
  }

  TEST_CASE("any length is written fully and nothing behind it") {
    const auto in = test::random_floats(40, 1.0f, 511);
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF16, ElementType::kBF16, ElementType::kFp8E4M3}) {
      const size_t bytes = kernels::row_bytes(type, 1);
      for (size_t n = 0; n <= 40; ++n) {
        test::for_each_simd_target([&] {
          std::vector<uint8_t> out(n * bytes + 1, 0xa5);
          kernels::convert_from_f32(type, in.data(), out.data(), n);
          CHECK(out[n * bytes] == 0xa5);
          std::vector<float> back(n + 1, 42.0f);
          kernels::convert_to_f32(type, out.data(), back.data(), n);
          CHECK(back[n] == 42.0f);
          bool equal = true;
          for (size_t i = 0; i < n; ++i) {
            equal = equal && back[i] == kernels::reference::round_to(in[i], type);
          }
          CHECK(equal);
        });
      }
    }
  }

  TEST_CASE("groups: the scale is the definition's, and every element its nearest step") {
    std::vector<float> in;
    for (const float scale : {1e-6f, 1e-3f, 1.0f, 100.0f, 1e5f}) {
      const auto more = test::random_floats(32 * 41, scale, 521);
      in.insert(in.end(), more.begin(), more.end());
    }
    in.resize(in.size() + 32, 0.0f);                                  // all zero
    for (int i = 0; i < 32; ++i) in.push_back(i % 2 ? 3.0f : -3.0f);  // equal extremes
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      const size_t bytes = kernels::row_bytes(type, 32);
      const auto expected = test::store_rows(in, 32, bytes, type);
      std::vector<uint8_t> first;
      test::for_each_simd_target([&] {
        std::vector<uint8_t> out(expected.size() + 1, 0xa5);
        kernels::convert_from_f32(type, in.data(), out.data(), in.size());
        CHECK(out.back() == 0xa5);
        std::vector<float> back(in.size());
        kernels::convert_to_f32(type, out.data(), back.data(), in.size());
        size_t other_scales = 0, wrong = 0, far = 0;
        for (size_t i = 0; i < in.size(); ++i) {
          const uint8_t* group = &out[i / 32 * bytes];
          const double scale = kernels::reference::element(group, 0, ElementType::kF16);
          if (std::memcmp(group, &expected[i / 32 * bytes], 2) != 0) ++other_scales;
          if (back[i] != kernels::reference::element(out.data(), i, type)) ++wrong;
          // Half a step. Further off: what the range, or a scale that was rounded down, cuts off,
          // and what a subnormal scale loses.
          const double steps = type == ElementType::kQ4_0 ? 8 : 127;
          const double size = std::fabs(scale);
          const bool at_end = std::fabs(in[i]) > (steps == 8 ? 7.4 : 126.9) * size;
          const double lost = size < 0x1p-14 ? steps * 0x1p-25 : 0;
          if (std::fabs(double{in[i]} - double{back[i]}) > (at_end ? 1.1 : 0.5001) * size + lost)
            ++far;
        }
        CHECK(other_scales == 0);
        CHECK(wrong == 0);
        CHECK(far == 0);
        if (first.empty()) first = out;
        CHECK(out == first);  // every target stores the same bytes
      });
    }
  }

  TEST_CASE("groups of one value, zero and subnormal ones included, come back as that value") {
    for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
      for (const float x : {0.0f, -0.0f, 1.0f, -3.0f, 1e-30f, 0.0078125f, 1000.0f}) {
        CAPTURE(x);
        const std::vector<float> in(32, x);
        test::for_each_simd_target([&] {
          std::vector<uint8_t> out(kernels::row_bytes(type, 32));
          kernels::convert_from_f32(type, in.data(), out.data(), 32);
          std::vector<float> back(32);
          kernels::convert_to_f32(type, out.data(), back.data(), 32);
          for (const float y : back) CHECK(std::fabs(y - x) <= std::fabs(x) * 5e-4f + 1e-29f);
        });
      }
    }
  }

  TEST_CASE("a group with what is not finite, or too large for its scale, reads back as NaN") {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
        std::vector<float> in(64, 1.0f);
        in[17] = bad;
        test::for_each_simd_target([&] {
          std::vector<uint8_t> out(kernels::row_bytes(type, 64));
          kernels::convert_from_f32(type, in.data(), out.data(), 64);
          std::vector<float> back(64);
          kernels::convert_to_f32(type, out.data(), back.data(), 64);
          for (size_t i = 0; i < 64; ++i) CHECK(std::isnan(back[i]) == (i < 32));
        });
      }
    }
  }
}
