// Barriers of phases: what they order, and the mistakes that the checker finds.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/phase_barrier.h"

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
using kvasir::test::verdict;

// Two warps write a word per lane of a buffer in turns with two others that read it.
enum class Unsaid { kNothing, kFull, kEmpty, kByOneReader, kByLanes };
KVASIR_KERNEL void pass_words(Unsaid unsaid, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, full, 1);
  KVASIR_SHARED(Barrier, empty, 1);
  KVASIR_SHARED(uint32_t, words, 64);
  if (thread_x() == 0) {
    init_barrier(full, 2);
    init_barrier(empty, unsaid == Unsaid::kByOneReader ? 1 : 2);
  }
  block_sync();
  const uint32_t at = thread_x() % 64;
  const bool is_first = thread_x() % 32 == 0;
  uint32_t sum = 0;
  for (uint32_t round = 0; round < 5; ++round) {
    if (thread_x() < 64) {
      if (unsaid != Unsaid::kEmpty) wait_for_phase(empty, (round + 1) % 2);
      words[at] = 100 * round + at;
      if (unsaid != Unsaid::kByLanes) warp_sync();
      if (is_first) arrive(full);
    } else {
      if (unsaid != Unsaid::kFull) wait_for_phase(full, round % 2);
      sum += words[63 - at];
      warp_sync();
      if (is_first && !(unsaid == Unsaid::kByOneReader && at == 0)) arrive(empty);
    }
  }
  if (thread_x() >= 64) out[at] = sum;
}

// What a kernel does wrong; each is right but for one.
enum class Mistake {
  kNone,
  kNoOrder,  // between initialising a barrier and using it
  kNotInitialised,
  kTwiceInitialised,
  kOneIsMissing,  // of two threads that are to come
  kOneTooMany,
  kOtherParity,  // waits for the phase before
};

// out[i] = i + 1 of two words that two threads write and all read.
KVASIR_KERNEL void two_come(Mistake mistake, Global<uint32_t> out) {
  KVASIR_SHARED(Barrier, barrier, 1);
  KVASIR_SHARED(uint32_t, words, 2);
  const auto is = [&](Mistake of) { return mistake == of; };
  if (thread_x() == 0 && !is(Mistake::kNotInitialised)) {
    init_barrier(barrier, 2);
    if (is(Mistake::kTwiceInitialised)) init_barrier(barrier, 2);
  }
  if (thread_x() == 0 && is(Mistake::kNotInitialised)) write_as(barrier, Barrier{});
  if (!is(Mistake::kNoOrder)) block_sync();
  if (thread_x() < 2 && !(is(Mistake::kOneIsMissing) && thread_x() == 1)) {
    words[thread_x()] = thread_x() + 1;
    arrive(barrier);
  }
  if (is(Mistake::kOneTooMany) && thread_x() == 2) arrive(barrier);
  shuffle_xor(kAllLanes, 0u, 1);  // all have come; orders nothing
  wait_for_phase(barrier, is(Mistake::kOtherParity) ? 1 : 0);
  out[thread_x()] = words[thread_x() % 2];
}

}  // namespace

TEST_SUITE("kernels/cuda/phase_barrier") {
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

  TEST_CASE("a phase ends when all have come, and no more than they are") {
    const DeviceArray<uint32_t> out(32);
    const auto run = [&](Mistake mistake) {
      return verdict([&] { launch(two_come, {.threads = 32}, {}, mistake, out.pointer()); });
    };
    CHECK(run(Mistake::kNone).text == "");
    CHECK(out.values()[30] == 1);
    CHECK(out.values()[31] == 2);
    check_fault(run(Mistake::kNoOrder), FaultKind::kRace, {"thread 1", "thread 0"});
    check_fault(run(Mistake::kNotInitialised), FaultKind::kBarrier, {"nobody has initialised"});
    check_fault(run(Mistake::kTwiceInitialised), FaultKind::kBarrier, {"initialised twice"});
    check_fault(run(Mistake::kOneIsMissing), FaultKind::kBarrier,
                {"waits for a phase at phase_barrier_test.cc:", "1 of 2 threads have not come"});
    check_fault(run(Mistake::kOneTooMany), FaultKind::kBarrier, {"has not been waited for"});
    CHECK_FALSE(run(Mistake::kOtherParity).is_clean);
  }
}
