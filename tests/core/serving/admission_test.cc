// Who enters: by memory as the plan counts it, by sequences, in the order of asking.
// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "core/model/layers/model.h"
#include "core/runtime/plan.h"
#include "tests/core/serving/asked.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

EngineOptions options() {
  EngineOptions made;
  made.max_context = 256;
  made.max_sequences = 4;
  made.max_step_tokens = 32;
  return made;
}

struct Scene {
  Bench bench;
  std::unique_ptr<Engine> engine = bench.engine(strategy_of(entries()[0]), options());
  MemoryBytes bytes(uint32_t n_tokens) const { return engine->sequence_bytes(0, n_tokens); }
};

// Dense attention and Quest, asked the same: they read one prompt of 80 tokens together.
struct TwoOfOnePrompt : Scene {
  StrategyId quest = engine->add_strategy(bench.pipeline(strategy_of(entry_named("quest"))));
  Asked asked[2] = {{80, 10, 1}, {80, 10, 1}};
  // Bytes of both when the prompt counts once.
  MemoryBytes both() const {
    const MemoryBytes records = engine->sequence_bytes(quest, 90) - bytes(90);
    return bytes(90) + (bytes(90) - bytes(80)) + records;
  }
  std::vector<Request> requests() {
    std::vector<Request> made;
    for (const StrategyId s : {StrategyId{0}, quest}) made.push_back(asked[s].request(s));
    return made;
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/serving/admission");

TEST_CASE("max_sequences of max_context tokens cost what the plan says") {
  KVASIR_FOR_EACH_ENTRY(entry) {
    Bench bench(8, 2, entry.head_dim);
    const auto engine = bench.engine(strategy_of(entry), options());
    Pipeline pipeline = bench.pipeline(strategy_of(entry));
    const MemoryPlan plan = make_plan(bench.tiny.model->shape(), {}, pipeline, options(), 0);
    const uint64_t planned = plan.sequence_bytes();
    const uint64_t counted = 4 * engine->sequence_bytes(0, 256).main;
    CHECK(counted + 4 > planned);  // a share of what is stated for all is rounded down
    if (plan.kv_slow_bytes == 0) CHECK(counted <= planned);
    // Half the context: half the bytes.
    const MemoryBytes half = engine->sequence_bytes(0, 128);
    CHECK(half.main < engine->sequence_bytes(0, 256).main);
    CHECK(engine->sequence_bytes(0, 128, 64).main <= half.main);
    CHECK(half.device == 0);
  }
  const Scene scene;  // K and V of 3 layers, 2 heads of 16, in f32, blocks of 8
  CHECK(scene.bytes(8) == 8ull * 3 * 2 * 16 * 2 * 4);
  CHECK(scene.bytes(9) == scene.bytes(16));
  CHECK(scene.engine->sequence_bytes(0, 64, 20) == scene.bytes(64) - scene.bytes(16));
}

TEST_CASE("K, V and records of a device take of its memory, and requests wait for that") {
  const std::string selector =
      "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\n"
      "[selector]\nplugin = 'block_topk'\nbudget_tokens = 24\n";
  const std::string device =
      selector +
      "[representative]\nplugin = 'kvasir.test.device_representative'\ninner = 'mean'\n"
      "[storage]\nplugin = 'kvasir.test.device_storage'\n"
      "[attention]\nplugin = 'kvasir.test.device_attention'\ninner = 'reference'\n";
  const std::string host = selector +
                           "[representative]\nplugin = 'mean'\n[storage]\nplugin = 'dram'\n"
                           "type_k = 'f32'\ntype_v = 'f32'\n[attention]\nplugin = 'reference'\n";
  Bench bench, other;
  const auto engine = bench.engine(device, options()), on_host = other.engine(host, options());
  const auto bytes = [&](uint32_t n) { return engine->sequence_bytes(0, n); };
  CHECK(bytes(80).main == 0);
  // The test's device has a row more per block of 8, layer and head, of K and of V.
  const uint64_t gaps = 80 / 8 * 3 * 2 * 2 * 16 * sizeof(float);
  CHECK(bytes(80).device == on_host->sequence_bytes(0, 80).main + gaps);
  CHECK(on_host->sequence_bytes(0, 80).device == 0);
  Pipeline pipeline = bench.pipeline(bench.strategy(device));
  const MemoryPlan plan = make_plan(bench.tiny.model->shape(), {}, pipeline, options(), 0);
  CHECK(plan.device_sequence_bytes == 4 * bytes(256).device);

  Scheduler scheduler(*engine, {.memory_bytes = {0, bytes(80).device}});
  Asked large(60, 20, 1), second(8, 4, 2);
  large.submit(scheduler);
  second.submit(scheduler);
  scheduler.step();
  CHECK(scheduler.memory_used() == bytes(80));
  CHECK(scheduler.find(second.id)->state == RequestState::kQueued);
  scheduler.run();
  CHECK(large.is_done());
  CHECK(second.is_done());
  CHECK(scheduler.memory_used() == 0);
  Asked larger(81, 1, 3);
  CHECK_THROWS_WITH_AS(larger.submit(scheduler),
                       doctest::Contains(" MiB of the device's memory for 82 tokens"), Error);
}

TEST_CASE("a request waits until its memory is free, and holds back those behind it") {
  Scene scene;
  Scheduler scheduler(*scene.engine, {.memory_bytes = scene.bytes(100)});
  Asked large(60, 20, 1), second(70, 10, 2), small(8, 4, 3);  // 80, 80 and 16 tokens
  large.submit(scheduler);
  second.submit(scheduler);
  small.submit(scheduler);
  scheduler.step();
  CHECK(scheduler.memory_used() == scene.bytes(80));
  CHECK(scheduler.n_queued() == 2);
  while (!large.has_ended) {
    CHECK(scheduler.find(small.id)->state == RequestState::kQueued);  // it would fit, but is last
    REQUIRE(scheduler.step());
  }
  scheduler.step();
  CHECK(scheduler.n_running() == 2);
  CHECK(scheduler.memory_used() == scene.bytes(80) + scene.bytes(16));
  scheduler.run();
  for (const Asked* a : {&large, &second, &small}) CHECK(a->is_done());
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("what can never be served is refused at once, with what to do") {
  Scene scene;
  Scheduler scheduler(*scene.engine, {.memory_bytes = scene.bytes(100)});
  Asked heavy(100, 50, 1), long_one(300, 1, 2), empty(0, 1, 3);
  std::string no_memory;
  try {
    heavy.submit(scheduler);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::kResource);
    no_memory = e.what();
  }
  CHECK(no_memory.find("150 tokens under dense") != std::string::npos);
  CHECK(no_memory.find("shorten the prompt") != std::string::npos);
  CHECK(error_of([&] { long_one.submit(scheduler); }).find("raise -c") != std::string::npos);
  CHECK(error_of([&] { empty.submit(scheduler); }).find("prompt is empty") != std::string::npos);
  CHECK(scheduler.n_queued() == 0);
  CHECK(!scheduler.step());
}

TEST_CASE("no more than max_sequences run") {
  Scene scene;
  for (const uint32_t limit : {1u, 3u, 9u}) {
    Scheduler scheduler(*scene.engine, {.max_sequences = limit});
    std::deque<Asked> asked;
    for (uint32_t i = 0; i < 6; ++i) asked.emplace_back(20, 5, i).submit(scheduler);
    size_t most = 0;
    while (scheduler.step()) most = std::max(most, scheduler.n_running());
    CHECK(most == std::min(limit, 4u));
    for (const Asked& a : asked) CHECK(a.is_done());
  }
}

TEST_CASE("kept sequences hold their memory until they are closed") {
  Scene scene;
  Scheduler scheduler(*scene.engine, {.memory_bytes = scene.bytes(100)});
  Asked kept(60, 4, 1), next(60, 4, 2);
  Request request = kept.request();
  request.keep = true;
  scheduler.submit(std::move(request));
  next.submit(scheduler);
  scheduler.run();
  CHECK(kept.is_done());
  CHECK(!next.has_ended);  // nothing to do until the kept one goes
  scheduler.close(kept.end.seq);
  scheduler.run();
  CHECK(next.is_done());
}

TEST_CASE("strategies that share a prompt count its K and V once") {
  for (const bool fits : {true, false}) {
    CAPTURE(fits);
    TwoOfOnePrompt scene;
    REQUIRE(scene.engine->can_follow(0, scene.quest));
    const MemoryBytes both = scene.both();
    Scheduler scheduler(*scene.engine, {.memory_bytes = fits ? both : both - 1});
    const auto ids = scheduler.submit_together(scene.requests());
    scheduler.step();
    CHECK(scheduler.n_running() == (fits ? 2 : 1));
    if (fits) CHECK(scheduler.memory_used() == both);
    scheduler.run();
    for (const Asked& each : scene.asked) CHECK(each.is_done());
    CHECK(scene.asked[1].end.prompt_read_by == ids[fits ? 0 : 1]);  // else one after the other
    CHECK(scheduler.memory_used() == 0);
  }
}

TEST_CASE("kept sequences count a prompt that they share once, and go on with it") {
  TwoOfOnePrompt scene;
  Scheduler scheduler(*scene.engine, {.memory_bytes = scene.both()});
  std::vector<Request> requests = scene.requests();
  for (Request& request : requests) request.keep = true;
  scheduler.submit_together(std::move(requests));
  scheduler.run();
  CHECK(scheduler.memory_used() == scene.both());
  for (const StrategyId s : {StrategyId{0}, scene.quest}) {
    const Asked& kept = scene.asked[s];
    scene.engine->truncate(kept.end.seq, 80);
    Asked further(0, 10, 2);
    Request request = further.request(s);
    request.seq = kept.end.seq;
    request.prompt.clear();
    request.logits = kept.logits[0];
    scheduler.submit(std::move(request));
    scheduler.run();
    CHECK(further.is_done());
  }
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("all that share a prompt may be paused in the middle of it: their memory is given back") {
  TwoOfOnePrompt scene;
  Scheduler scheduler(*scene.engine);
  const auto ids = scheduler.submit_together(scene.requests());
  scheduler.step();
  for (const RequestId id : ids) scheduler.pause(id);
  CHECK(scheduler.memory_used() ==
        scene.bytes(90) + scene.engine->sequence_bytes(scene.quest, 90));  // each for itself
  for (const RequestId id : ids) scheduler.resume(id);
  scheduler.run();
  for (const Asked& each : scene.asked) CHECK(each.is_done());
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("a paused prompt of a sequence that goes on is counted once") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  Asked first(60, 4, 1), further(60, 4, 2);
  Request request = first.request();
  request.keep = true;
  scheduler.submit(std::move(request));
  scheduler.run();
  request = further.request();
  request.seq = first.end.seq;
  const RequestId id = scheduler.submit(std::move(request));
  scheduler.step();
  for (int i = 0; i < 3; ++i) {
    scheduler.pause(id);
    scheduler.resume(id);
  }
  CHECK(scheduler.memory_used() == scene.bytes(128));
  scheduler.run();
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("an item that is refused ends its request, and who would have followed reads on") {
  TwoOfOnePrompt scene;
  Scheduler scheduler(*scene.engine);
  std::vector<Request> requests = scene.requests();
  requests[0].prompt.back() = 1 << 20;  // no token of the model
  scheduler.submit_together(std::move(requests));
  scheduler.run();
  for (const Asked& each : scene.asked) {
    CHECK(each.end.state == RequestState::kFailed);
    CHECK(each.progress.size() == scene.asked[0].progress.size());  // no piece was read twice
  }
  CHECK(scheduler.memory_used() == 0);
}
