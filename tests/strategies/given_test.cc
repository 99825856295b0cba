// A prompt whose projections are given, and shown to all who ask for its attention, is to every
// strategy what the same prompt is when a model projects it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/given_world.h"
#include "tests/strategies/table.h"

using namespace kvasir;
using namespace kvasir::test;

TEST_SUITE_BEGIN("strategies/given");

TEST_CASE("a given prompt is decoded over as one that a model projects") {
  using From = GivenWorld::From;
  KVASIR_FOR_EACH_ENTRY(entry) {
    GivenWorld world(entry.head_dim);
    const auto engine = world.bench.engine(world.model, strategy_of(entry), world.options);
    const uint32_t chunk = engine->max_step_tokens();
    const SequenceId read = engine->open(), given = engine->open();
    world.read(*engine, {read}, chunk, From::kModel);
    world.read(*engine, {given}, chunk, From::kGivenToAllAskers);
    CHECK(engine->kv_bytes(given) == engine->kv_bytes(read));
    const Outputs want = world.decode(*engine, read);
    CHECK(world.decode(*engine, given) == want);
    engine->close(read);
    engine->close(given);
    // What follows depends on the prompt, so that a given one that was lost would show.
    const SequenceId none = engine->open();
    CHECK(world.decode(*engine, none) != want);
  }
}

TEST_SUITE_END();
