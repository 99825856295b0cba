// The measured rate of multiply-adds: no expectation of speed, but of sense.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/arithmetic_rate.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/platform/thread_pool.h"
#include "core/platform/topology.h"
#include "tests/support/effort.h"

TEST_SUITE_BEGIN("core/platform/arithmetic_rate");

TEST_CASE("the rate of multiply-adds is finite, positive and within what any machine has") {
  using namespace kvasir;
  // One repeat of one worker is a million rounds: emulated, a third of a minute.
  ThreadPool pool(Topology::detect(), test::emulated() ? 1 : 0);
  const double rate = measure_multiply_add_rate(pool, test::emulated() ? 1 : 3);
  CHECK(rate > 1e6);
  CHECK(rate < 1e16);
  CHECK_THROWS_AS(measure_multiply_add_rate(pool, 0), Error);
}

TEST_SUITE_END();
