// Products of a warp, loads of matrices and asynchronous copies: each against what its registers
// and addresses say, and the mistakes that the checker finds.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/rows.h"

namespace {
using namespace kvasir::cuda;
using emulation::Fault;
using emulation::FaultKind;
using kvasir::kernels::ElementType;
using kvasir::test::DeviceArray;
using kvasir::test::random_floats;

// Row-major: a [16][k], b [k][8], d [16][8]. Registers are filled by the table of tensor.h.
template <bool kIsF16>
KVASIR_KERNEL void multiply_half(Global<const float> a, Global<const float> b, Global<float> d) {
  const uint32_t g = thread_x() / 4, t = thread_x() % 4;
  const auto pack = [](float x, float y) { return kIsF16 ? pack_f16(x, y) : pack_bf16(x, y); };
  const auto of_a = [&](uint32_t row, uint32_t k) {
    return pack(a[16 * row + k], a[16 * row + k + 1]);
  };
  const auto of_b = [&](uint32_t k) { return pack(b[8 * k + g], b[8 * (k + 1) + g]); };
  const uint32_t x[4] = {of_a(g, 2 * t), of_a(g + 8, 2 * t), of_a(g, 2 * t + 8),
                         of_a(g + 8, 2 * t + 8)};
  const uint32_t y[2] = {of_b(2 * t), of_b(2 * t + 8)};
  float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  if (kIsF16) {
    multiply_f16(sums, x, y);
  } else {
    multiply_bf16(sums, x, y);
  }
  for (uint32_t i = 0; i < 4; ++i) d[8 * (g + i / 2 * 8) + 2 * t + i % 2] = sums[i];
}

KVASIR_KERNEL void multiply_single(bool rounds, Global<const float> a, Global<const float> b,
                                   Global<float> d) {
  const uint32_t g = thread_x() / 4, t = thread_x() % 4;
  const auto of = [&](float x) { return rounds ? round_tf32(x) : std::bit_cast<uint32_t>(x); };
  const uint32_t x[4] = {of(a[8 * g + t]), of(a[8 * (g + 8) + t]), of(a[8 * g + t + 4]),
                         of(a[8 * (g + 8) + t + 4])};
  const uint32_t y[2] = {of(b[8 * t + g]), of(b[8 * (t + 4) + g])};
  float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  multiply_tf32(sums, x, y);
  for (uint32_t i = 0; i < 4; ++i) d[8 * (g + i / 2 * 8) + 2 * t + i % 2] = sums[i];
}

// out[lane][matrix][2] of four matrices of 8 x 8 that lie below one another.
KVASIR_KERNEL void load_all(bool is_transposed, uint32_t skew, Global<const uint16_t> from,
                            Global<uint16_t> out) {
  KVASIR_SHARED(uint16_t, rows, 4 * 64 + 8);
  for (uint32_t i = thread_x(); i < 4 * 64; i += kWarpLanes) rows[i] = from[i];
  if (thread_x() < 8) rows[256 + thread_x()] = 0;
  warp_sync();
  const Shared<const uint16_t> row = rows + (8 * thread_x() + skew);
  uint32_t loaded[4];
  if (is_transposed) {
    load_matrices_transposed(loaded, row);
  } else {
    load_matrices(loaded, row);
  }
  for (uint32_t i = 0; i < 8; ++i)
    out[8 * thread_x() + i] = static_cast<uint16_t>(loaded[i / 2] >> (16 * (i % 2)));
}

// Two groups of copies; `n_left` of them may be missing when their floats are read.
template <uint32_t kLeft>
KVASIR_KERNEL void copy_two(Global<const float> from, Global<float> out) {
  KVASIR_SHARED(float, first, 4);
  KVASIR_SHARED(float, second, 4);
  if (thread_x() != 0) return;
  copy_ahead(first, std::bit_cast<uint64_t>(from.raw()), true);
  commit_copies();
  copy_ahead(second, std::bit_cast<uint64_t>(from.raw()), false);
  commit_copies();
  wait_for_copies<kLeft>();
  for (uint32_t i = 0; i < 4; ++i) out[i] = first[i];
  for (uint32_t i = 0; i < 4; ++i) out[4 + i] = second[i];
}

// Another thread touches the target of a copy without a barrier behind the wait.
KVASIR_KERNEL void copy_for_other(bool has_barrier, Global<const float> from, Global<float> out) {
  KVASIR_SHARED(float, to, 4);
  if (thread_x() == 0) copy_ahead(to, std::bit_cast<uint64_t>(from.raw()), true);
  commit_copies();
  wait_for_copies<0>();
  if (has_barrier) block_sync();
  if (thread_x() == 1) out[0] = to[2];
}

std::vector<float> rounded(const std::vector<float>& x, ElementType type) {
  std::vector<uint16_t> half(x.size());
  std::vector<float> out(x.size());
  kvasir::kernels::convert_from_f32(type, x.data(), half.data(), x.size());
  kvasir::kernels::convert_to_f32(type, half.data(), out.data(), x.size());
  return out;
}

// d[row][column] = what the kernels begin with, plus a b in double.
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, uint32_t n) {
  std::vector<double> out(16 * 8);
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t column = 0; column < 8; ++column) {
      double& sum = out[8 * row + column];
      sum = 1.0 + column % 2 + row / 8 * 2;
      for (uint32_t k = 0; k < n; ++k) sum += double{a[n * row + k]} * double{b[8 * k + column]};
    }
  return out;
}

FaultKind fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Fault& fault) {
    return fault.kind();
  }
  FAIL("no fault was found");
  return {};
}

}  // namespace

TEST_SUITE("kernels/cuda/tensor") {
  TEST_CASE("products of f16, bf16 and tf32 are those of the rounded matrices") {
    for (const bool is_f16 : {true, false}) {
      const ElementType type = is_f16 ? ElementType::kF16 : ElementType::kBF16;
      const std::vector<float> a = random_floats(16 * 16, 1.0f, 1), b = random_floats(128, 1.0f, 2);
      const DeviceArray<float> on_a(a), on_b(b), d(128);
      launch(is_f16 ? multiply_half<true> : multiply_half<false>, {.threads = 32}, {},
             on_a.pointer(), on_b.pointer(), d.pointer());
      CAPTURE(is_f16);
      kvasir::test::check_close(d.values(), product(rounded(a, type), rounded(b, type), 16), 1e-6);
    }
    std::vector<float> a = random_floats(16 * 8, 1.0f, 3), b = random_floats(64, 1.0f, 4);
    const DeviceArray<float> on_a(a), on_b(b), d(128);
    launch(multiply_single, {.threads = 32}, {}, true, on_a.pointer(), on_b.pointer(), d.pointer());
    const std::vector<float> sums = d.values();
    for (std::vector<float>* matrix : {&a, &b})
      for (float& x : *matrix) {  // to 10 bits behind the point
        int exponent = 0;
        const float fraction = std::frexp(x, &exponent);
        x = std::ldexp(std::round(std::ldexp(fraction, 11)), exponent - 11);
      }
    kvasir::test::check_close(sums, product(a, b, 8), 1e-6);
    CHECK(fault_of([&] {
            launch(multiply_single, {.threads = 32}, {}, false, on_a.pointer(), on_b.pointer(),
                   d.pointer());
          }) == FaultKind::kWarp);
  }

  TEST_CASE("two numbers are rounded to nearest even, as the kernels of the host do it") {
    std::vector<float> x = random_floats(2000, 1.0f, 5);
    for (size_t i = 0; i < x.size(); ++i)  // down to subnormals, up to infinity
      x[i] = std::ldexp(x[i], static_cast<int>(i % 48) - 28);
    x[0] = 65519.0f, x[1] = 65520.0f, x[2] = -0.0f, x[3] = 0x1p-25f, x[4] = 0x1.8p-24f;
    x[5] = 1.0f + 0x1p-11f, x[6] = 1.0f + 0x3p-11f, x[7] = INFINITY;
    std::vector<uint16_t> f16(x.size()), bf16(x.size());
    kvasir::kernels::convert_from_f32(ElementType::kF16, x.data(), f16.data(), x.size());
    kvasir::kernels::convert_from_f32(ElementType::kBF16, x.data(), bf16.data(), x.size());
    for (size_t i = 0; i + 1 < x.size(); i += 2) {
      CAPTURE(x[i]);
      CHECK(pack_f16(x[i], x[i + 1]) == (f16[i] | uint32_t{f16[i + 1]} << 16));
      CHECK(pack_bf16(x[i], x[i + 1]) == (bf16[i] | uint32_t{bf16[i + 1]} << 16));
    }
  }

  TEST_CASE("four matrices come to the lanes, as they lie and transposed") {
    std::vector<uint16_t> numbers(256);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(7 * i + 1);
    const DeviceArray<uint16_t> from(numbers), out(256);
    for (const bool is_transposed : {false, true}) {
      launch(load_all, {.threads = 32}, {}, is_transposed, 0, from.pointer(), out.pointer());
      const std::vector<uint16_t> loaded = out.values();
      for (uint32_t lane = 0; lane < 32; ++lane)
        for (uint32_t m = 0; m < 4; ++m)
          for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t g = lane / 4, at = 2 * (lane % 4) + i;
            const uint32_t row = is_transposed ? at : g, column = is_transposed ? g : at;
            CHECK(loaded[8 * lane + 2 * m + i] == numbers[64 * m + 8 * row + column]);
          }
    }
    CHECK(fault_of([&] {
            launch(load_all, {.threads = 32}, {}, false, 1, from.pointer(), out.pointer());
          }) == FaultKind::kBounds);
  }

  TEST_CASE("copies are there once they were waited for, and zeros where nothing is there") {
    const DeviceArray<float> from(std::vector<float>{5, 6, 7, 8}), out(8);
    launch(copy_two<0>, {.threads = 32}, {}, from.pointer(), out.pointer());
    CHECK(out.values() == std::vector<float>{5, 6, 7, 8, 0, 0, 0, 0});
    launch(copy_two<1>, {.threads = 32}, {}, from.pointer(), out.pointer());
    const std::vector<float> early = out.values();
    CHECK(early[3] == 8);
    CHECK(std::isnan(early[4]));
    launch(copy_two<2>, {.threads = 32}, {}, from.pointer(), out.pointer());
    CHECK(std::isnan(out.values()[0]));
    launch(copy_for_other, {.threads = 32}, {}, true, from.pointer(), out.pointer());
    CHECK(out.values()[0] == 7);
    CHECK(fault_of([&] {
            launch(copy_for_other, {.threads = 32}, {}, false, from.pointer(), out.pointer());
          }) == FaultKind::kRace);
  }
}
