// Bulk copies: what they bring, and the mistakes that the checker finds.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bulk_copy.h"

#include <doctest/doctest.h>

#include <numeric>
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
using kvasir::test::verdict;

// What a kernel does wrong; each is right but for one.
enum class Mistake {
  kNone,
  kReadsEarly,   // before the wait
  kOthersRead,   // threads that nothing orders behind the one that waited
  kNotShown,     // the barrier, to the copy engine
  kNoOrder,      // between initialising a barrier and using it
  kExpectsMore,  // than is copied
  kExpectsLess,
  kExpectsNothing,  // nobody says what is expected
  kOddBytes,        // not a multiple of 16
  kOddTarget,       // not aligned to 16
  kOddSource,
  kBehindTarget,  // more than the shared array has
  kBehindSource,
  kOtherParity,  // waits for the phase before
  kNobodyWaits,
};

uint64_t address(Global<const uint32_t> at) { return std::bit_cast<uint64_t>(at.raw()); }

// out[i] = in[i], 64 words by one copy.
KVASIR_KERNEL void copy_once(Mistake mistake, Global<const uint32_t> in, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, barrier, 1);
  KVASIR_SHARED(uint32_t, words, 64);
  const auto is = [&](Mistake of) { return mistake == of; };
  if (thread_x() == 0) {
    init_barrier(barrier, 1);
    if (!is(Mistake::kNotShown)) show_barriers();
  }
  if (!is(Mistake::kNoOrder)) block_sync();
  if (thread_x() == (is(Mistake::kNoOrder) ? 1u : 31u)) {  // the one that goes on first
    uint32_t bytes = 256;
    uint64_t from = address(in);
    Shared<uint32_t> to = words;
    if (is(Mistake::kOddBytes)) bytes = 248;
    if (is(Mistake::kOddTarget)) to = to + 1u, bytes = 240;
    if (is(Mistake::kOddSource)) from += 4, bytes = 240;
    if (is(Mistake::kBehindTarget)) bytes = 272;
    if (is(Mistake::kBehindSource)) from += 256;
    const uint32_t more = is(Mistake::kExpectsMore) ? 16 : 0,
                   less = is(Mistake::kExpectsLess) ? 16 : 0;
    if (!is(Mistake::kExpectsNothing)) expect_bytes(barrier, bytes + more - less);
    bulk_copy(to, from, bytes, barrier);
  }
  if (is(Mistake::kNobodyWaits)) return;
  if (!is(Mistake::kReadsEarly) && !(is(Mistake::kOthersRead) && thread_x() != 5))
    wait_for_bytes(barrier, is(Mistake::kOtherParity) ? 1 : 0);
  for (uint32_t i = thread_x(); i < 64; i += 32) out[i] = words[i];
}

// One thread waits and a barrier shows the others what came.
KVASIR_KERNEL void copy_for_others(bool has_barrier, Global<const uint32_t> in,
                                   Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, barrier, 1);
  KVASIR_SHARED(uint32_t, words, 64);
  if (thread_x() == 0) {
    init_barrier(barrier, 1);
    show_barriers();
    expect_bytes(barrier, 256);
    bulk_copy(words, address(in), 256, barrier);
    wait_for_bytes(barrier, 0);
  }
  if (has_barrier) warp_sync();
  out[thread_x()] = words[2 * thread_x()];
}

// Rounds over one buffer: sums of `n` stretches of 32 words. is_ordered: a barrier stands between
// the readers of a round and the next copy, else an exchange, which orders nothing.
KVASIR_KERNEL void copy_rounds(uint32_t n, bool is_ordered, bool is_fenced,
                               Global<const uint32_t> in, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, barrier, 1);
  KVASIR_SHARED(uint32_t, words, 32);
  if (thread_x() == 0) {
    init_barrier(barrier, 1);
    show_barriers();
  }
  words[thread_x()] = 0;  // what threads wrote is behind a fence before it is copied over
  if (is_fenced) fence_async();
  block_sync();
  uint32_t sum = 0;
  for (uint32_t round = 0; round < n; ++round) {
    if (thread_x() == 0) {
      expect_bytes(barrier, 128);
      bulk_copy(words, address(in) + uint64_t{128} * round, 64, barrier);
      bulk_copy(words + 16u, address(in) + uint64_t{128} * round + 64, 64, barrier);
    }
    wait_for_bytes(barrier, round % 2);
    sum += words[31 - thread_x()];
    if (is_ordered)
      warp_sync();
    else
      shuffle_xor(kAllLanes, sum, 1);
  }
  out[thread_x()] = sum;
}

// Of two threads that are to say what they expect, `n` do.
KVASIR_KERNEL void two_expect(uint32_t n, Global<const uint32_t> in, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, barrier, 1);
  KVASIR_SHARED(uint32_t, words, 8);
  if (thread_x() == 0) {
    init_barrier(barrier, 2);
    show_barriers();
  }
  warp_sync();
  if (thread_x() < n && thread_x() < 2) {
    expect_bytes(barrier, 16);
    bulk_copy(words + 4 * thread_x(), address(in), 16, barrier);
  }
  if (n == 3 && thread_x() == 1) expect_bytes(barrier, 16);
  warp_sync();
  wait_for_bytes(barrier, 0);
  if (thread_x() < 8) out[thread_x()] = words[thread_x()];
}

// Two warps write a word per lane of a buffer in turns with two others that read it.
enum class Unsaid { kNothing, kFull, kEmpty, kByOneReader, kByLanes };
KVASIR_KERNEL void pass_words(Unsaid unsaid, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, full, 1);
  KVASIR_SHARED(Barrier, empty, 1);
  KVASIR_SHARED(uint32_t, words, 64);
  if (thread_x() == 0) {
    init_barrier(full, 2);
    init_barrier(empty, unsaid == Unsaid::kByOneReader ? 1 : 2);
    show_barriers();
  }
  block_sync();
  const uint32_t at = thread_x() % 64;
  const bool is_first = thread_x() % 32 == 0;
  uint32_t sum = 0;
  for (uint32_t round = 0; round < 5; ++round) {
    if (thread_x() < 64) {
      if (unsaid != Unsaid::kEmpty) wait_for_bytes(empty, (round + 1) % 2);
      words[at] = 100 * round + at;
      if (unsaid != Unsaid::kByLanes) warp_sync();
      if (is_first) arrive(full);
    } else {
      if (unsaid != Unsaid::kFull) wait_for_bytes(full, round % 2);
      sum += words[63 - at];
      warp_sync();
      if (is_first && !(unsaid == Unsaid::kByOneReader && at == 0)) arrive(empty);
    }
  }
  if (thread_x() >= 64) out[at] = sum;
}

std::vector<uint32_t> counted(uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), 1);
  return out;
}

}  // namespace

TEST_SUITE("kernels/cuda/bulk_copy") {
  TEST_CASE("a copy is there for those who have waited for it") {
    const DeviceArray<uint32_t> in(counted(64)), out(64);
    const auto run = [&](Mistake mistake) {
      return verdict(
          [&] { launch(copy_once, {.threads = 32}, {}, mistake, in.pointer(), out.pointer()); });
    };
    CHECK(run(Mistake::kNone).text == "");
    CHECK(out.values() == in.values());
    check_fault(run(Mistake::kReadsEarly), FaultKind::kRace,
                {"thread 31 of block 0 reads", "a bulk copy of block 0 wrote", "not waited"});
    check_fault(run(Mistake::kOthersRead), FaultKind::kRace, {"a bulk copy of block 0 wrote"});
    check_fault(run(Mistake::kOtherParity), FaultKind::kRace, {"a bulk copy of block 0 wrote"});
    check_fault(run(Mistake::kNotShown), FaultKind::kRace, {"show_barriers()"});
    check_fault(run(Mistake::kNoOrder), FaultKind::kRace, {"thread 1", "thread 0"});
    check_fault(run(Mistake::kNobodyWaits), FaultKind::kRace, {"under way"});
  }

  TEST_CASE("bytes that never come are a fault, and so are those that nobody expects") {
    const DeviceArray<uint32_t> in(counted(64)), out(64);
    const auto run = [&](Mistake mistake) {
      return verdict(
          [&] { launch(copy_once, {.threads = 32}, {}, mistake, in.pointer(), out.pointer()); });
    };
    check_fault(run(Mistake::kExpectsMore), FaultKind::kBarrier,
                {"waits for bytes at bulk_copy_test.cc:", "16 bytes more are expected"});
    check_fault(run(Mistake::kExpectsLess), FaultKind::kBarrier, {"16 bytes more are copied"});
    check_fault(run(Mistake::kExpectsNothing), FaultKind::kBarrier, {"1 of 1 threads"});
  }

  TEST_CASE("a copy keeps to 16 bytes, and to both of its arrays") {
    const DeviceArray<uint32_t> in(counted(64)), out(64);
    const auto run = [&](Mistake mistake) {
      return verdict(
          [&] { launch(copy_once, {.threads = 32}, {}, mistake, in.pointer(), out.pointer()); });
    };
    check_fault(run(Mistake::kOddBytes), FaultKind::kBounds, {"multiple of 16", "248"});
    for (const Mistake mistake : {Mistake::kOddTarget, Mistake::kOddSource})
      check_fault(run(mistake), FaultKind::kBounds, {"not a multiple of 16"});
    check_fault(run(Mistake::kBehindTarget), FaultKind::kBounds, {"272 bytes at 0", "256 bytes"});
    check_fault(run(Mistake::kBehindSource), FaultKind::kBounds, {"256 bytes at 256"});
  }

  TEST_CASE("a barrier of threads shows what one of them has waited for") {
    const DeviceArray<uint32_t> in(counted(64)), out(32);
    launch(copy_for_others, {.threads = 32}, {}, true, in.pointer(), out.pointer());
    CHECK(out.values()[31] == 63);
    check_fault(verdict([&] {
                  launch(copy_for_others, {.threads = 32}, {}, false, in.pointer(), out.pointer());
                }),
                FaultKind::kRace, {"thread 1 of block 0 reads"});
  }

  TEST_CASE("a buffer is filled again and again, once its readers are done") {
    const DeviceArray<uint32_t> in(counted(160)), out(32);
    const auto run = [&](uint32_t n, bool is_ordered, bool is_fenced) {
      return verdict([&] {
        launch(copy_rounds, {.threads = 32}, {}, n, is_ordered, is_fenced, in.pointer(),
               out.pointer());
      });
    };
    CHECK(run(5, true, true).text == "");
    CHECK(out.values()[31] == 1 + 33 + 65 + 97 + 129);
    check_fault(run(5, false, true), FaultKind::kRace, {});
    check_fault(run(1, true, false), FaultKind::kRace, {"fence_async()"});
  }

  TEST_CASE("warps take turns at a buffer, as they come to barriers") {
    const DeviceArray<uint32_t> out(64);
    const auto run = [&](Unsaid unsaid) {
      return verdict([&] { launch(pass_words, {.threads = 128}, {}, unsaid, out.pointer()); });
    };
    CHECK(run(Unsaid::kNothing).text == "");
    CHECK(out.values()[0] == 1000 + 5 * 63);
    CHECK(out.values()[63] == 1000);
    for (const Unsaid unsaid : {Unsaid::kEmpty, Unsaid::kByOneReader, Unsaid::kByLanes}) {
      CAPTURE(static_cast<int>(unsaid));
      check_fault(run(unsaid), FaultKind::kRace, {"no barrier stands between"});
    }
    CHECK(run(Unsaid::kFull).text != "");
  }

  TEST_CASE("a phase ends when all have said what they expect, and no more than they are") {
    const DeviceArray<uint32_t> in(counted(4)), out(8);
    const auto run = [&](uint32_t n) {
      return verdict(
          [&] { launch(two_expect, {.threads = 32}, {}, n, in.pointer(), out.pointer()); });
    };
    CHECK(run(2).text == "");
    CHECK(out.values() == std::vector<uint32_t>{1, 2, 3, 4, 1, 2, 3, 4});
    check_fault(run(1), FaultKind::kBarrier, {"1 of 2 threads"});
    check_fault(run(3), FaultKind::kBarrier, {"has not been waited for"});
  }
}
