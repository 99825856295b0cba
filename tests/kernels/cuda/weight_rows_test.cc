// Weights of every type expanded on the device: the numbers of the file, rounded once.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_rows.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/weight_case.h"

namespace {
using namespace kvasir;
using test::DeviceArray;

}  // namespace

TEST_SUITE("kernels/cuda/weight_rows") {
  TEST_CASE("every type is expanded to the nearest bf16 of each of its numbers") {
    for (const GgmlType type : test::kWeightTypes) {
      for (const uint32_t n_in : test::odd_widths(type)) {
        CAPTURE(std::string(name(type)));
        CAPTURE(n_in);
        const test::WeightCase w(type, n_in, 3, 17 + n_in);
        const DeviceArray<uint8_t> from(w.bytes);
        const DeviceArray<uint16_t> to(w.values.size());
        cuda::expand_to_bf16(test::weight_type(type), address(from), w.row_bytes, w.n_out, n_in,
                             address(to), {});
        const std::vector<uint16_t> got = to.values();
        // A device may contract a product and a sum: one rounding of f32 less, which is seen where
        // it decides between two neighbours of bf16.
        uint32_t n_far = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const double exact = w.values[i], rounded = bf16_to_f32(got[i]);
          const double half_step = std::ldexp(1.0, std::ilogb(exact == 0 ? 1e-30 : exact) - 8);
          n_far += std::abs(rounded - exact) <= half_step * (1 + 1e-4) + 1e-9 ? 0 : 1;
        }
        CHECK(n_far == 0);
      }
    }
  }

  TEST_CASE("rows may lie apart, and what lies between them is not read") {
    const uint32_t n_in = 24, n_rows = 5, stride = 40;
    std::vector<float> from(size_t{stride} * n_rows, std::nanf(""));
    for (uint32_t r = 0; r < n_rows; ++r)
      for (uint32_t i = 0; i < n_in; ++i)
        from[size_t{r} * stride + i] = static_cast<float>(r) - 0.37f * static_cast<float>(i);
    const DeviceArray<float> x(from);
    const DeviceArray<uint16_t> to(size_t{n_in} * n_rows);
    cuda::expand_to_bf16(cuda::WeightType::kF32, address(x), 4 * stride, n_rows, n_in, address(to),
                         {});
    const std::vector<uint16_t> got = to.values();
    for (uint32_t r = 0; r < n_rows; ++r)
      for (uint32_t i = 0; i < n_in; ++i)
        CHECK(got[size_t{r} * n_in + i] == f32_to_bf16(from[size_t{r} * stride + i]));
  }
}
