// Products of rows with weight matrices on the device, against sums in double.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weight_product.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/cuda/matrix_product.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/gate_oracle.h"
#include "tests/kernels/cuda/weight_case.h"

namespace {
using namespace kvasir;
using test::DeviceArray;

std::vector<float> random_rows(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// The product in double, and the sum of the magnitudes of its terms, which bounds its rounding.
struct Sum {
  double value = 0, magnitude = 0;
};
Sum sum_of(const float* x, const float* w, uint32_t n) {
  Sum sum;
  for (uint32_t i = 0; i < n; ++i) {
    sum.value += double{x[i]} * double{w[i]};
    sum.magnitude += std::abs(double{x[i]} * double{w[i]});
  }
  return sum;
}

// How often y is further from the oracle than `roundings` roundings of the sum of magnitudes.
uint32_t n_wrong(const test::WeightCase& w, const std::vector<float>& x, uint32_t n_rows,
                 const std::vector<float>& bias, const std::vector<float>& before,
                 const std::vector<float>& y, double roundings) {
  uint32_t wrong = 0;
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t o = 0; o < w.n_out; ++o) {
      Sum want =
          sum_of(x.data() + size_t{r} * w.n_in, w.values.data() + size_t{o} * w.n_in, w.n_in);
      const size_t at = size_t{r} * w.n_out + o;
      for (const double more :
           {bias.empty() ? 0.0 : double{bias[o]}, before.empty() ? 0.0 : double{before[at]}}) {
        want.value += more;
        want.magnitude += std::abs(more);
      }
      const double far = std::abs(double{y[at]} - want.value);
      wrong += far <= roundings * 0x1p-24 * want.magnitude ? 0 : 1;
    }
  }
  return wrong;
}

std::vector<float> product(const test::WeightCase& w, const std::vector<float>& x, uint32_t n_rows,
                           const std::vector<float>& bias, const std::vector<float>& before) {
  const DeviceArray<uint8_t> on_w(w.bytes);
  const DeviceArray<float> on_x(x), on_bias(bias);
  const DeviceArray<float> y(before.empty() ? std::vector<float>(size_t{n_rows} * w.n_out, NAN)
                                            : before);
  cuda::weight_product(
      {address(on_x), address(on_w), bias.empty() ? 0 : address(on_bias), address(y), w.row_bytes,
       n_rows, w.n_in, w.n_out, test::weight_type(w.type), !before.empty()},
      {});
  return y.values();
}

}  // namespace

TEST_SUITE("kernels/cuda/weight_product") {
  // Each lane adds at most 64 products one after another here, then five sums of lanes.
  TEST_CASE("few rows times weights as they lie are the sums of double, in every type") {
    for (const GgmlType type : test::kWeightTypes) {
      for (const uint32_t n_in : test::odd_widths(type)) {
        for (const uint32_t n_rows : {1u, 3u, 8u}) {
          CAPTURE(std::string(name(type)));
          CAPTURE(n_in);
          CAPTURE(n_rows);
          const test::WeightCase w(type, n_in, 6, 5 + n_in);
          const std::vector<float> x = random_rows(size_t{n_rows} * n_in, n_rows);
          const std::vector<float> bias = random_rows(6, 3);
          const std::vector<float> before = random_rows(size_t{n_rows} * 6, 4);
          CHECK(n_wrong(w, x, n_rows, {}, {}, product(w, x, n_rows, {}, {}), 64) == 0);
          CHECK(n_wrong(w, x, n_rows, bias, before, product(w, x, n_rows, bias, before), 64) == 0);
        }
      }
    }
  }

  // The sums of both matrices are within their roundings, and no activation here is steeper
  // than 1.2.
  TEST_CASE("a gated product is the activation of one times the other") {
    for (const cuda::GateKind kind : {cuda::GateKind::kSilu, cuda::GateKind::kGelu}) {
      for (const GgmlType type : {GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_K}) {
        for (const uint32_t n_rows : {1u, 5u}) {
          const uint32_t n_in = 512, n_out = 6;
          const test::WeightCase gate(type, n_in, n_out, 3), up(type, n_in, n_out, 4);
          const std::vector<float> x = random_rows(size_t{n_rows} * n_in, n_rows);
          const DeviceArray<uint8_t> on_gate(gate.bytes), on_up(up.bytes);
          const DeviceArray<float> on_x(x), y(size_t{n_rows} * n_out);
          cuda::weight_product(
              {address(on_x), address(on_gate), 0, address(y), gate.row_bytes, n_rows, n_in, n_out,
               test::weight_type(type), false, address(on_up), kind},
              {});
          const std::vector<float> got = y.values();
          for (uint32_t r = 0; r < n_rows; ++r) {
            for (uint32_t o = 0; o < n_out; ++o) {
              const float* row = x.data() + size_t{r} * n_in;
              const Sum g = sum_of(row, gate.values.data() + size_t{o} * n_in, n_in);
              const Sum u = sum_of(row, up.values.data() + size_t{o} * n_in, n_in);
              const double act = test::activation(kind, g.value);
              const double slack = 64 * 0x1p-24 *
                                   (1.2 * g.magnitude * std::abs(u.value) +
                                    u.magnitude * std::abs(act) + std::abs(act * u.value));
              CHECK(std::abs(double{got[size_t{r} * n_out + o]} - act * u.value) <= slack + 1e-12);
            }
          }
        }
      }
    }
  }

  TEST_CASE("a row has the same bits whatever rows share its product") {
    for (const GgmlType type : test::kWeightTypes) {
      CAPTURE(std::string(name(type)));
      const uint32_t n_in = 1280, n_out = 9;
      const test::WeightCase w(type, n_in, n_out, 8);
      const std::vector<float> x = random_rows(size_t{8} * n_in, 2);
      const std::vector<float> all = product(w, x, 8, {}, {});
      const std::vector<float> some = product(w, x, 3, {}, {});
      CHECK(std::equal(some.begin(), some.end(), all.begin()));
      for (uint32_t r = 0; r < 8; ++r) {
        const std::vector<float> row(x.begin() + r * n_in, x.begin() + (r + 1) * n_in);
        const std::vector<float> alone = product(w, row, 1, {}, {});
        CHECK(std::equal(alone.begin(), alone.end(), all.begin() + r * n_out));
      }
    }
  }

  TEST_CASE("weights at any even address and x at any of floats have the same bits") {
    for (const GgmlType type : test::kWeightTypes) {
      if (type == GgmlType::kF32) continue;  // multiples of four
      CAPTURE(std::string(name(type)));
      const uint32_t n_in = 768, n_out = 5;
      const test::WeightCase w(type, n_in, n_out, 8);
      const std::vector<float> x = random_rows(n_in, 2);
      const std::vector<float> aligned = product(w, x, 1, {}, {});
      std::vector<uint8_t> bytes(2 + w.bytes.size());
      std::copy(w.bytes.begin(), w.bytes.end(), bytes.begin() + 2);
      std::vector<float> moved(1 + n_in);
      std::copy(x.begin(), x.end(), moved.begin() + 1);
      const DeviceArray<uint8_t> on_w(bytes);
      const DeviceArray<float> on_x(moved), y(n_out);
      cuda::weight_product({address(on_x) + 4, address(on_w) + 2, 0, address(y), w.row_bytes, 1,
                            n_in, n_out, test::weight_type(type), false},
                           {});
      CHECK(y.values() == aligned);
    }
  }

  // Both factors are bf16 here, so only the sums round.
  TEST_CASE("many rows in bf16 are the sums of double, in columns of a wider result") {
    for (const bool accumulates : {false, true}) {
      const uint32_t n_rows = 19, n_in = 40, n_out = 7, stride = 11;
      const test::WeightCase w(GgmlType::kBF16, n_in, n_out, 4);
      std::vector<float> x = random_rows(size_t{n_rows} * n_in, 6);
      std::vector<uint16_t> bits;
      for (float& value : x) {
        bits.push_back(f32_to_bf16(value));
        value = bf16_to_f32(bits.back());
      }
      const std::vector<float> before = random_rows(size_t{n_rows} * stride, 9);
      const DeviceArray<uint8_t> on_w(w.bytes), workspace(cuda::MatrixProducts::workspace_bytes());
      const DeviceArray<uint16_t> on_x(bits);
      const DeviceArray<float> y(before);
      cuda::MatrixProducts products({}, workspace.data());
      products.multiply({address(on_x), address(on_w), address(y) + 4 * 2, n_rows, n_in, n_out,
                         stride, accumulates});
      const std::vector<float> got = y.values();
      for (uint32_t r = 0; r < n_rows; ++r) {
        for (uint32_t c = 0; c < stride; ++c) {
          const size_t at = size_t{r} * stride + c;
          if (c < 2 || c >= 2 + n_out) {
            CHECK(got[at] == before[at]);
            continue;
          }
          Sum want =
              sum_of(x.data() + size_t{r} * n_in, w.values.data() + size_t{c - 2} * n_in, n_in);
          if (accumulates) want.value += double{before[at]};
          CHECK(std::abs(double{got[at]} - want.value) <= 64 * 0x1p-24 * (want.magnitude + 4));
        }
      }
    }
  }
}
