// RMSNorm and the elementwise pieces of a layer on the device, against double precision.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/row_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/gate_oracle.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

std::vector<float> random_values(size_t n, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

}  // namespace

TEST_SUITE("kernels/cuda/layer_rows") {
  // One warp per row up to 512 elements, eight warps above. The square of a row is a sum of up to
  // width / 32 terms per thread; 1e-5 are some 80 roundings.
  TEST_CASE("rows are normalised, in place, and added to what is there") {
    constexpr float kEps = 1e-6f;
    for (const uint32_t width : {1u, 5u, 32u, 33u, 128u, 512u, 513u, 1000u, 4099u}) {
      for (const uint64_t n_rows : {uint64_t{1}, uint64_t{3}}) {
        CAPTURE(width);
        CAPTURE(n_rows);
        const std::vector<float> x = random_values(n_rows * width, 3.0f, width);
        const std::vector<float> weight = random_values(width, 1.0f, 2),
                                 before = random_values(n_rows * width, 1.0f, 3);
        const DeviceArray<float> on_x(x), on_weight(weight), y(before);
        const auto norm = [&](uint64_t to, bool adds) {
          rms_norm({address(on_x), address(on_weight), to, n_rows, width, kEps, adds}, {});
        };
        norm(address(y), true);
        const std::vector<float> added = y.values();
        norm(address(y), false);
        const std::vector<float> written = y.values();
        norm(address(on_x), false);
        CHECK(on_x.values() == written);
        double worst = 0;
        for (uint64_t r = 0; r < n_rows; ++r) {
          double sum = 0;
          for (uint32_t i = 0; i < width; ++i) sum += double{x[r * width + i]} * x[r * width + i];
          const double scale = 1.0 / std::sqrt(sum / width + double{kEps});
          for (uint32_t i = 0; i < width; ++i) {
            const uint64_t at = r * width + i;
            const double want = x[at] * scale * weight[i], size = 1 + std::abs(want);
            worst = std::fmax(worst, std::abs(written[at] - want) / size);
            worst = std::fmax(worst, std::abs(added[at] - before[at] - want) / (size + 1));
            if (std::isnan(written[at]) || std::isnan(added[at])) worst = INFINITY;
          }
        }
        CHECK(worst < 1e-5);
      }
    }
  }

  TEST_CASE("gates are those of the formula, also where exp overflows") {
    for (const GateKind kind : {GateKind::kSilu, GateKind::kGelu}) {
      for (const uint32_t n : {1u, 255u, 257u, 1000u}) {
        std::vector<float> gate = random_values(n, 3.0f, n), up = random_values(n, 1.0f, 2);
        gate[0] = -200.0f;
        gate[n - 1] = n > 1 ? 150.0f : gate[n - 1];
        const DeviceArray<float> on_gate(gate), on_up(up);
        apply_gate(kind, address(on_gate), address(on_up), n, {});
        const std::vector<float> got = on_gate.values();
        for (uint32_t i = 0; i < n; ++i) {
          const double want = kvasir::test::activation(kind, gate[i]) * up[i];
          CHECK(std::abs(got[i] - want) <= 2e-6 * (std::abs(want) + std::abs(up[i])));
        }
      }
    }
  }

  TEST_CASE("a bias is added to each row, and logits are capped") {
    const uint32_t width = 37, n_rows = 9;
    const std::vector<float> y = random_values(width * n_rows, 40.0f, 5),
                             bias = random_values(width, 1.0f, 6);
    const DeviceArray<float> on_y(y), on_bias(bias);
    add_bias(address(on_bias), n_rows, width, address(on_y), {});
    const std::vector<float> biased = on_y.values();
    for (uint32_t i = 0; i < y.size(); ++i) CHECK(biased[i] == y[i] + bias[i % width]);
    cap_values(30.0f, address(on_y), y.size(), {});
    const std::vector<float> capped = on_y.values();
    for (uint32_t i = 0; i < y.size(); ++i) {
      const double want = 30.0 * std::tanh(double{biased[i]} / 30.0);
      CHECK(std::abs(capped[i] - want) <= 2e-6 * 30.0);
    }
  }
}
