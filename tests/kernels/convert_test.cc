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
    for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
      const size_t bytes = kernels::element_bytes(type);
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
}
