// The emulation does what a device does: blocks, barriers, lanes, shared memory, atomics, numbers.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;

// out[block_y][block_x][thread] = what the thread is told about itself.
KVASIR_KERNEL void who_am_i(Global<uint32_t> out) {
  const uint32_t block = block_y() * blocks_x() + block_x();
  out[block * threads_x() + thread_x()] = 1000 * block + thread_x();
}

// Sum of a block's numbers by halves: wrong unless barriers hold back the fast ones.
KVASIR_KERNEL void sum_by_halves(Global<const float> in, Global<float> out) {
  KVASIR_SHARED(float, sums, 256);
  const uint32_t t = thread_x();
  sums[t] = in[block_x() * threads_x() + t];
  block_sync();
  for (uint32_t n = threads_x() / 2; n > 0; n /= 2) {
    if (t < n) sums[t] += sums[t + n];
    block_sync();
  }
  if (t == 0) out[block_x()] = sums[0];
}

// Each warp sums by exchanging; lane 0 writes.
KVASIR_KERNEL void sum_by_lanes(Global<const float> in, Global<float> out) {
  float sum = in[thread_x()];
  for (uint32_t lanes = 16; lanes > 0; lanes /= 2) sum += shuffle_xor(kAllLanes, sum, lanes);
  const float first = shuffle(kAllLanes, in[thread_x()] * 1.0f, 0);
  if (thread_x() % kWarpLanes == 0) out[thread_x() / kWarpLanes] = sum + 1000.0f * first;
}

// The even lanes ask one another, the odd ones too, with masks of their own.
KVASIR_KERNEL void ask_by_parity(Global<uint32_t> out) {
  const uint32_t t = thread_x();
  const bool is_odd = t % 2 == 1;
  uint32_t bits = 0;
  if (is_odd) {
    bits = ballot(0xaaaaaaaau, t >= 16);
  } else {
    bits = ballot(0x55555555u, t < 4);
  }
  out[t] = bits;
}

KVASIR_KERNEL void count(Global<uint32_t> counter, Global<uint32_t> tickets) {
  const uint32_t i = block_x() * threads_x() + thread_x();
  tickets[i] = atomic_add(counter, 1u);
}

// Two arrays out of one piece of dynamic shared memory, filled by one warp and read by another.
KVASIR_KERNEL void pass_on(Global<uint32_t> out) {
  SharedMemory shared;
  const Shared<uint32_t> numbers = shared.take<uint32_t>(3);
  const Shared<Bytes16> wide = shared.take<Bytes16>(1);
  if (thread_x() < 3) numbers[thread_x()] = thread_x() + 7;
  if (thread_x() == 3) write_as(wide, Bytes16{{1, 2, 3, 4}});
  block_sync();
  if (thread_x() != 40) return;
  const Bytes16 all = read_as<Bytes16>(wide);
  out[0] = numbers[0] + numbers[1] + numbers[2] + all.word[0] + all.word[3];
}

KVASIR_KERNEL void pass_within_warp(Global<uint32_t> out) {
  KVASIR_SHARED(uint32_t, numbers, 32);
  numbers[thread_x()] = thread_x() * thread_x();
  warp_sync();
  out[thread_x()] = numbers[31 - thread_x()];
}

KVASIR_KERNEL void throws_at(uint32_t thread) {
  if (thread_x() == thread) throw std::runtime_error("one thread's trouble");
  block_sync();
}

}  // namespace

TEST_SUITE("kernels/cuda/emulation") {
  TEST_CASE("every thread of every block runs once and knows its place") {
    DeviceArray<uint32_t> out(6 * 40);
    launch(who_am_i, {.blocks_x = 3, .blocks_y = 2, .threads = 40}, {}, out.pointer());
    const std::vector<uint32_t> seen = out.values();
    for (uint32_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == 1000 * (i / 40) + i % 40);
  }

  TEST_CASE("barriers hold threads back: a sum through shared memory is right, block by block") {
    std::vector<float> numbers(3 * 256);
    std::iota(numbers.begin(), numbers.end(), 1.0f);
    const DeviceArray<float> in(numbers);
    DeviceArray<float> out(3);
    launch(sum_by_halves, {.blocks_x = 3, .threads = 256}, {}, in.pointer(), out.pointer());
    for (uint32_t b = 0; b < 3; ++b) {
      const auto first = numbers.begin() + 256 * b;
      CHECK(out.values()[b] == std::accumulate(first, first + 256, 0.0f));
    }
  }

  TEST_CASE("lanes exchange values within their warp") {
    std::vector<float> numbers(96);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    const DeviceArray<float> in(numbers);
    DeviceArray<float> out(3);
    launch(sum_by_lanes, {.threads = 96}, {}, in.pointer(), out.pointer());
    for (uint32_t w = 0; w < 3; ++w)
      CHECK(out.values()[w] == 496.0f + 33024.0f * static_cast<float>(w));
  }

  TEST_CASE("lanes with a mask of their own meet only one another") {
    DeviceArray<uint32_t> out(32);
    launch(ask_by_parity, {.threads = 32}, {}, out.pointer());
    for (uint32_t t = 0; t < 32; ++t)
      CHECK(out.values()[t] == (t % 2 == 1 ? 0xaaaa0000u : 0x00000005u));
  }

  TEST_CASE("atomics count every thread once") {
    DeviceArray<uint32_t> counter(std::vector<uint32_t>{5}), tickets(4 * 64);
    launch(count, {.blocks_x = 4, .threads = 64}, {}, counter.pointer(), tickets.pointer());
    CHECK(counter.values()[0] == 5 + 256);
    std::vector<uint32_t> sorted = tickets.values();
    std::sort(sorted.begin(), sorted.end());
    for (uint32_t i = 0; i < 256; ++i) CHECK(sorted[i] == 5 + i);
  }

  TEST_CASE("shared memory passes values between warps, and within one by its own barrier") {
    DeviceArray<uint32_t> out(32);
    SharedSize size;
    size.add<uint32_t>(3);
    size.add<Bytes16>(1);
    CHECK(size.bytes == 32);
    launch(pass_on, {.threads = 64, .shared_bytes = size.bytes}, {}, out.pointer());
    CHECK(out.values()[0] == 7 + 8 + 9 + 1 + 4);
    launch(pass_within_warp, {.threads = 32}, {}, out.pointer());
    for (uint32_t t = 0; t < 32; ++t) CHECK(out.values()[t] == (31 - t) * (31 - t));
  }

  TEST_CASE("an exception of one thread ends the launch and unwinds the others") {
    CHECK_THROWS_WITH(launch(throws_at, {.threads = 64}, {}, 40u), "one thread's trouble");
    CHECK_THROWS_WITH(launch(throws_at, {.threads = 64}, {}, 0u), "one thread's trouble");
    DeviceArray<uint32_t> out(40);  // the fibres are as good as new
    launch(who_am_i, {.threads = 40}, {}, out.pointer());
    CHECK(out.values()[39] == 39);
  }

  TEST_CASE("every binary16 has the value that the oracle says") {
    bool same = true;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto stored = static_cast<uint16_t>(bits);
      const double expected =
          kvasir::kernels::reference::element(&stored, 0, kvasir::kernels::ElementType::kF16);
      const double actual = half_to_float(bits);
      same = same && (std::isnan(expected) ? std::isnan(actual) : actual == expected);
    }
    CHECK(same);
  }
}
