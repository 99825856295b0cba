// Numbers that are not finite are found wherever they stand, and no others.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/finite.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cfloat>
#include <limits>

#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

// Added to what stands there.
uint32_t counted(const std::vector<float>& values, uint32_t before = 0) {
  const DeviceArray<float> on_device(values);
  const DeviceArray<uint32_t> count(std::vector<uint32_t>{before});
  const auto address = [](const auto& array) { return reinterpret_cast<uint64_t>(array.data()); };
  count_not_finite(address(on_device), values.size(), address(count), {});
  return count.values()[0];
}

}  // namespace

TEST_SUITE("kernels/cuda/finite") {
  TEST_CASE("NaN and infinities of both signs are counted, the largest and smallest numbers not") {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                    kInfinity = std::numeric_limits<float>::infinity();
    CHECK(counted({0.0f, -0.0f, FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, -1e-45f}) == 0);
    CHECK(counted({kNaN, 1, -kNaN, kInfinity, 2, -kInfinity,
                   std::numeric_limits<float>::signaling_NaN()}) == 5);
    CHECK(counted({}, 7) == 7);
    CHECK(counted({kNaN}, 7) == 8);
  }

  TEST_CASE("at the first and last place of every length, over the borders of warps and blocks") {
    for (const uint32_t n : {1u, 31u, 33u, 255u, 257u, 2047u, 2048u, 2049u, 5000u}) {
      CAPTURE(n);
      std::vector<float> values(n, 1.0f);
      CHECK(counted(values) == 0);
      values.front() = values.back() = values[n / 2] = std::numeric_limits<float>::quiet_NaN();
      CHECK(counted(values) == std::min(n, 3u));
    }
  }
}
