// The checker finds what was planted: each kernel here is right but for one mistake, and is
// accepted once the mistake is mended.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fault_of.h"

namespace {
using namespace kvasir::cuda;
using emulation::FaultKind;
using kvasir::test::check_fault;
using kvasir::test::DeviceArray;
using kvasir::test::Verdict;
using kvasir::test::verdict;

KVASIR_KERNEL void neighbour(bool has_barrier, Global<uint32_t> out) {
  KVASIR_SHARED(uint32_t, numbers, 64);
  numbers[thread_x()] = thread_x();
  if (has_barrier) block_sync();
  out[thread_x()] = numbers[(thread_x() + 1) % 64];
}

// The barrier of a warp is enough inside of it and too little across.
KVASIR_KERNEL void neighbour_of_warp(uint32_t distance, Global<uint32_t> out) {
  KVASIR_SHARED(uint32_t, numbers, 64);
  numbers[thread_x()] = thread_x();
  warp_sync();
  out[thread_x()] = numbers[thread_x() ^ distance];
}

// Reads before the next round writes: the second barrier is the one that is forgotten.
KVASIR_KERNEL void rounds(bool has_barrier, Global<uint32_t> out) {
  KVASIR_SHARED(uint32_t, numbers, 64);
  uint32_t sum = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    numbers[thread_x()] = thread_x() + round;
    block_sync();
    sum += numbers[63 - thread_x()];
    if (has_barrier) block_sync();
  }
  out[thread_x()] = sum;
}

KVASIR_KERNEL void exchange_orders_nothing(bool has_barrier, Global<uint32_t> out) {
  KVASIR_SHARED(uint32_t, numbers, 32);
  numbers[thread_x()] = thread_x();
  if (has_barrier) warp_sync();
  const uint32_t other = shuffle_xor(kAllLanes, thread_x(), 1);
  out[thread_x()] = numbers[other];
}

KVASIR_KERNEL void last_of(uint32_t n, Global<const float> in, Global<float> out) {
  if (thread_x() == 0) out[0] = in[n];
}
KVASIR_KERNEL void shared_last_of(uint32_t n, Global<float> out) {
  SharedMemory shared;
  const Shared<float> first = shared.take<float>(8);
  const Shared<float> second = shared.take<float>(8);
  if (thread_x() == 0) {
    for (uint32_t i = 0; i < 8; ++i) second[i] = 1.0f;
    for (uint32_t i = 0; i < n; ++i) first[i] = 2.0f;
    out[0] = first[0];
  }
}
KVASIR_KERNEL void wide_at(uint32_t word, Global<const uint32_t> in, Global<uint32_t> out) {
  if (thread_x() == 0) out[0] = read_as<Bytes16>(in + word).word[0];
}
KVASIR_KERNEL void reads_unwritten(uint32_t n_written, Global<float> out) {
  KVASIR_SHARED(float, numbers, 8);
  if (thread_x() < n_written) numbers[thread_x()] = 1.0f;
  block_sync();
  out[thread_x()] = numbers[thread_x()];
}

KVASIR_KERNEL void barrier_below(uint32_t n, Global<uint32_t> out) {
  if (thread_x() < n) block_sync();
  out[thread_x()] = 1;
}
KVASIR_KERNEL void either_barrier(uint32_t n) {
  if (thread_x() < n) {
    block_sync();
  } else {
    block_sync();
  }
}
KVASIR_KERNEL void leaves_early(uint32_t n) {
  if (thread_x() >= n) return;
  block_sync();
}

KVASIR_KERNEL void shuffle_below(uint32_t n, uint32_t mask, Global<uint32_t> out) {
  if (thread_x() < n) out[thread_x()] = shuffle_xor(mask, thread_x(), 1);
}
KVASIR_KERNEL void shuffle_from(uint32_t lane, uint32_t mask, Global<uint32_t> out) {
  if (mask >> thread_x() & 1u) out[thread_x()] = shuffle(mask, thread_x(), lane);
}
KVASIR_KERNEL void unlike_masks(uint32_t other, Global<uint32_t> out) {
  out[thread_x()] = shuffle_xor(thread_x() == 5 ? other : kAllLanes, thread_x(), 1);
}
KVASIR_KERNEL void outside_of_mask(uint32_t mask, Global<uint32_t> out) {
  out[thread_x()] = ballot(mask, true);
}

// Blocks have no order: one word for all of them is a race unless it is counted atomically.
KVASIR_KERNEL void one_word(bool is_atomic, Global<uint32_t> out) {
  if (thread_x() != 0) return;
  if (is_atomic) {
    atomic_add(out, 1u);
  } else {
    out[0] = block_x();
  }
}
KVASIR_KERNEL void reads_other_block(uint32_t distance, Global<uint32_t> numbers) {
  const uint32_t i = block_x();
  if (thread_x() == 0) numbers[i] = i;
  if (thread_x() == 0) numbers[blocks_x() + i] = numbers[i ^ distance];
}
KVASIR_KERNEL void counts_and_reads(bool reads, Global<uint32_t> counter, Global<uint32_t> out) {
  atomic_add(counter, 1u);
  out[thread_x()] = reads ? uint32_t{counter[0]} : 0u;
}
KVASIR_KERNEL void bytes_side_by_side(uint32_t stride, Global<uint8_t> out) {
  out[thread_x() * stride / 2] = static_cast<uint8_t>(thread_x());
}
// Threads of two warps write bytes 4 to 7 and one byte, in either order.
KVASIR_KERNEL void word_and_byte(bool word_first, bool has_barrier, uint32_t byte,
                                 Global<uint8_t> out) {
  const uint32_t of_word = word_first ? 0 : 32;
  if (thread_x() == 0 && has_barrier) out[byte] = 1;  // a word that is parted before
  if (has_barrier) block_sync();
  if (thread_x() == of_word) write_as(out + 4u, uint32_t{7});
  if (has_barrier) block_sync();
  if (thread_x() == 32 - of_word) out[byte] = 2;
}
// A byte is written after all others of its word, which is then read.
KVASIR_KERNEL void word_of_two_writers(bool has_barrier, uint32_t byte, Global<uint8_t> bytes,
                                       Global<uint32_t> out) {
  if (thread_x() == 0) write_as(bytes + 4u, uint32_t{7});
  block_sync();
  if (thread_x() == 0) bytes[byte] = 1;
  if (has_barrier) block_sync();
  if (thread_x() == 32) out[0] = read_as<uint32_t>(bytes + 4u);
}

}  // namespace

TEST_SUITE("kernels/cuda/checker") {
  TEST_CASE("a missing barrier of the block is a race, whichever thread comes first") {
    DeviceArray<uint32_t> out(64);
    CHECK(verdict([&] { launch(neighbour, {.threads = 64}, {}, true, out.pointer()); }).is_clean);
    check_fault(verdict([&] { launch(neighbour, {.threads = 64}, {}, false, out.pointer()); }),
                FaultKind::kUninitialized, {"thread 0", "shared memory of 256 bytes"});
    CHECK(verdict([&] { launch(rounds, {.threads = 64}, {}, true, out.pointer()); }).is_clean);
    check_fault(verdict([&] { launch(rounds, {.threads = 64}, {}, false, out.pointer()); }),
                FaultKind::kRace, {"reads", "thread 63 of block 0 wrote", "checker_test.cc:"});
  }

  TEST_CASE("the barrier of a warp orders its lanes and nobody else") {
    DeviceArray<uint32_t> out(64);
    const auto run = [&](uint32_t distance) {
      return verdict(
          [&] { launch(neighbour_of_warp, {.threads = 64}, {}, distance, out.pointer()); });
    };
    for (const uint32_t distance : {0u, 1u, 16u, 31u}) CHECK(run(distance).is_clean);
    check_fault(run(32), FaultKind::kUninitialized, {"thread 31"});
    const auto exchange = [&](bool has_barrier) {
      return verdict([&] {
        launch(exchange_orders_nothing, {.threads = 32}, {}, has_barrier, out.pointer());
      });
    };
    CHECK(exchange(true).is_clean);
    check_fault(exchange(false), FaultKind::kRace, {"reads", "wrote"});
  }

  TEST_CASE("one past the end is out of bounds, also into the array that comes next") {
    const DeviceArray<float> in(std::vector<float>(10, 1.0f));
    DeviceArray<float> out(8);
    const auto global = [&](uint32_t n) {
      return verdict([&] { launch(last_of, {.threads = 1}, {}, n, in.pointer(), out.pointer()); });
    };
    CHECK(global(9).is_clean);
    check_fault(global(10), FaultKind::kBounds, {"4 bytes at 40", "global memory of 40 bytes"});
    const auto shared = [&](uint32_t n) {
      return verdict([&] {
        launch(shared_last_of, {.threads = 1, .shared_bytes = 64}, {}, n, out.pointer());
      });
    };
    CHECK(shared(8).is_clean);
    check_fault(shared(9), FaultKind::kBounds, {"shared memory of 32 bytes"});
  }

  TEST_CASE("wide accesses keep to their alignment, and stay inside to the last byte") {
    const DeviceArray<uint32_t> in(std::vector<uint32_t>(10, 1));
    DeviceArray<uint32_t> out(1);
    const auto run = [&](uint32_t word) {
      return verdict(
          [&] { launch(wide_at, {.threads = 1}, {}, word, in.pointer(), out.pointer()); });
    };
    CHECK(run(4).is_clean);
    check_fault(run(2), FaultKind::kBounds, {"not a multiple of 16"});
    check_fault(run(8), FaultKind::kBounds, {"16 bytes at 32", "40 bytes"});
  }

  TEST_CASE("freed, foreign and null addresses are followed by nobody") {
    DeviceArray<float> out(1);
    float on_host = 1.0f;
    for (void* address : {static_cast<void*>(&on_host), static_cast<void*>(nullptr)}) {
      check_fault(verdict([&] {
                    launch(last_of, {.threads = 1}, {}, 0u, Global<const float>(address),
                           out.pointer());
                  }),
                  FaultKind::kBounds, {"no allocation"});
    }
  }

  TEST_CASE("shared memory holds nothing until a thread of the block has written it") {
    DeviceArray<float> out(8);
    const auto run = [&](uint32_t n) {
      return verdict([&] { launch(reads_unwritten, {.threads = 8}, {}, n, out.pointer()); });
    };
    CHECK(run(8).is_clean);
    check_fault(run(7), FaultKind::kUninitialized, {"thread 7"});
  }

  TEST_CASE("a barrier that not all threads reach, or two that stand for one") {
    DeviceArray<uint32_t> out(64);
    const auto run = [&](uint32_t n) {
      return verdict([&] { launch(barrier_below, {.threads = 64}, {}, n, out.pointer()); });
    };
    CHECK(run(64).is_clean);
    CHECK(run(0).is_clean);
    check_fault(run(33), FaultKind::kBarrier, {"thread 0 waits", "thread 33 has returned"});
    CHECK(verdict([] { launch(leaves_early, {.threads = 64}, {}, 64u); }).is_clean);
    check_fault(verdict([] { launch(leaves_early, {.threads = 64}, {}, 63u); }),
                FaultKind::kBarrier, {"thread 63 has returned"});
    CHECK(verdict([] { launch(either_barrier, {.threads = 64}, {}, 64u); }).is_clean);
    check_fault(verdict([] { launch(either_barrier, {.threads = 64}, {}, 32u); }),
                FaultKind::kBarrier, {"different barriers"});
  }

  TEST_CASE("lanes that a mask names and that do not come, or come with another mask") {
    DeviceArray<uint32_t> out(64);
    const auto run = [&](uint32_t n, uint32_t mask) {
      return verdict([&] { launch(shuffle_below, {.threads = 32}, {}, n, mask, out.pointer()); });
    };
    CHECK(run(32, kAllLanes).is_clean);
    CHECK(run(16, 0xffffu).is_clean);
    check_fault(run(16, kAllLanes), FaultKind::kWarp, {"ffffffff", "thread 16 has returned"});
    check_fault(run(16, 0xffu), FaultKind::kWarp, {"thread 8", "own mask"});
    const auto masks = [&](uint32_t other) {
      return verdict([&] { launch(unlike_masks, {.threads = 32}, {}, other, out.pointer()); });
    };
    CHECK(masks(kAllLanes).is_clean);
    check_fault(masks(0x30u), FaultKind::kWarp, {"thread 5", "00000030"});
    check_fault(
        verdict([&] { launch(outside_of_mask, {.threads = 32}, {}, 0x7fffffffu, out.pointer()); }),
        FaultKind::kWarp, {"thread 31"});
    // A block of 48 threads has a warp and a half.
    check_fault(
        verdict([&] { launch(shuffle_below, {.threads = 48}, {}, 48u, kAllLanes, out.pointer()); }),
        FaultKind::kWarp, {"names lanes that the block does not have"});
  }

  TEST_CASE("the value of a lane outside of the mask is nobody's") {
    DeviceArray<uint32_t> out(32);
    const auto run = [&](uint32_t lane) {
      return verdict(
          [&] { launch(shuffle_from, {.threads = 32}, {}, lane, 0xffu, out.pointer()); });
    };
    CHECK(run(7).is_clean);
    check_fault(run(8), FaultKind::kWarp, {"lane 8"});
  }

  TEST_CASE("blocks have no order among them; atomics need none") {
    DeviceArray<uint32_t> out(8);
    const auto word = [&](bool is_atomic) {
      return verdict(
          [&] { launch(one_word, {.blocks_x = 2, .threads = 32}, {}, is_atomic, out.pointer()); });
    };
    CHECK(word(true).is_clean);
    check_fault(word(false), FaultKind::kRace, {"thread 0 of block 1", "thread 0 of block 0"});
    const auto other = [&](uint32_t distance) {
      return verdict([&] {
        launch(reads_other_block, {.blocks_x = 4, .threads = 32}, {}, distance, out.pointer());
      });
    };
    CHECK(other(0).is_clean);
    check_fault(other(1), FaultKind::kRace, {"block 1", "block 0"});
    DeviceArray<uint32_t> counter(std::vector<uint32_t>{0}), seen(32);
    const auto mixed = [&](bool reads) {
      return verdict([&] {
        launch(counts_and_reads, {.threads = 32}, {}, reads, counter.pointer(), seen.pointer());
      });
    };
    CHECK(mixed(false).is_clean);
    check_fault(mixed(true), FaultKind::kRace, {"thread 1", "thread 0"});
  }

  TEST_CASE("the checker tells bytes apart, and one launch from the next") {
    DeviceArray<uint8_t> out(64);
    const auto run = [&](uint32_t stride) {
      return verdict(
          [&] { launch(bytes_side_by_side, {.threads = 32}, {}, stride, out.pointer()); });
    };
    CHECK(run(2).is_clean);
    CHECK(run(2).is_clean);
    check_fault(run(1), FaultKind::kRace, {"thread 1", "thread 0"});
  }

  TEST_CASE("a word races with each byte of it, and not with the byte beside it") {
    DeviceArray<uint8_t> bytes(12);
    DeviceArray<uint32_t> out(1);
    for (uint32_t byte = 3; byte < 9; ++byte) {
      CAPTURE(byte);
      const bool inside = byte >= 4 && byte < 8;
      const std::string name = "byte " + std::to_string(byte) + " of";
      for (const bool word_first : {true, false}) {
        const auto both = [&](bool has_barrier) {
          return verdict([&] {
            launch(word_and_byte, {.threads = 64}, {}, word_first, has_barrier, byte,
                   bytes.pointer());
          });
        };
        CHECK(both(true).is_clean);
        const Verdict racing = both(false);
        CHECK(racing.is_clean != inside);
        if (inside)
          check_fault(racing, FaultKind::kRace, {name, "thread 32 of block 0 writes", "thread 0"});
      }
      const auto read = [&](bool has_barrier) {
        return verdict([&] {
          launch(word_of_two_writers, {.threads = 64}, {}, has_barrier, byte, bytes.pointer(),
                 out.pointer());
        });
      };
      CHECK(read(true).is_clean);
      const Verdict racing = read(false);
      CHECK(racing.is_clean != inside);
      if (inside) check_fault(racing, FaultKind::kRace, {name, "thread 32 of block 0 reads"});
    }
  }

  TEST_CASE("a launch of more than a device has, or a kernel that takes more than it was given") {
    DeviceArray<float> out(8);
    check_fault(
        verdict([&] { launch(last_of, {.threads = 1025}, {}, 0u, out.pointer(), out.pointer()); }),
        FaultKind::kLaunch, {"more"});
    check_fault(verdict([&] {
                  launch(shared_last_of, {.threads = 1, .shared_bytes = 63}, {}, 1u, out.pointer());
                }),
                FaultKind::kLaunch, {"64 bytes", "63"});
  }
}
