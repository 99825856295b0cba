// Copies from and to pinned memory are over when they have been waited for.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/emulation/fault.h"
#include "kernels/cuda/emulation/pinned.h"
#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

struct PinnedArray {
  std::vector<float> at;
  explicit PinnedArray(std::vector<float> values) : at(std::move(values)) {
    REQUIRE(pin_memory(at.data(), at.size() * sizeof(float)));
  }
  ~PinnedArray() { unpin_memory(at.data()); }
  PinnedArray(const PinnedArray&) = delete;
};

}  // namespace

TEST_SUITE("kernels/cuda/pinned") {
  TEST_CASE("what goes to the host is there after the wait, and NaN before") {
    const DeviceArray<float> device(std::vector<float>{1, 2, 3});
    PinnedArray host({7, 8, 9});
    copy_to_host(host.at.data(), device.data(), 8, {});
    CHECK(std::isnan(host.at[0]));
    CHECK(host.at[2] == 9);
    const std::vector<float> later = {5, 5, 5};
    copy_to_device(device.data(), later.data(), 12, {});  // comes behind it
    wait({});
    CHECK(host.at == std::vector<float>{1, 2, 9});
    CHECK(device.values() == later);
  }

  TEST_CASE("what a copy reads must not change before the wait") {
    const DeviceArray<float> device(3);
    PinnedArray host({1, 2, 3});
    copy_to_device(device.data(), host.at.data(), 12, {});
    CHECK(device.values() == std::vector<float>{1, 2, 3});  // it waits
    host.at[1] = 4;                                         // nobody reads it any more
    copy_to_device(device.data(), host.at.data(), 12, {});
    host.at[2] = 5;
    CHECK_THROWS_WITH_AS(wait({}), doctest::Contains("pinned memory was changed before"),
                         emulation::Fault);
    CHECK_NOTHROW(wait({}));
    // The stream itself may write there what it has read before.
    copy_to_device(device.data(), host.at.data(), 12, {});
    copy_to_host(host.at.data(), device.data(), 12, {});
    CHECK_NOTHROW(wait({}));
    CHECK(host.at == std::vector<float>{1, 4, 5});
  }

  TEST_CASE("only whole arrays that are pinned now are pinned") {
    float outside[4] = {};
    const DeviceArray<float> device(std::vector<float>{1, 2, 3, 4});
    const uint64_t before = emulation::n_pinned();
    {
      const PinnedArray host({0, 0, 0});
      CHECK(emulation::n_pinned() == before + 1);
      CHECK(emulation::is_pinned(host.at.data() + 1, 8));
      CHECK_FALSE(emulation::is_pinned(host.at.data() + 1, 12));
    }
    CHECK(emulation::n_pinned() == before);
    copy_to_host(outside, device.data(), 16, {});
    CHECK(outside[3] == 4);
    CHECK_THROWS_AS(emulation::unpin(outside), emulation::Fault);
  }
}
