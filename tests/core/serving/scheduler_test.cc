// Order, fairness, budget, cancelling, faults, and prompts that are read together.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>

#include "tests/core/serving/asked.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSequences = 4, kStep = 19;  // a chunk of 16 and three that decode

EngineOptions options(uint32_t max_sequences = kSequences, uint32_t max_step = kStep) {
  EngineOptions made;
  made.max_sequences = max_sequences;
  made.max_step_tokens = max_step;
  return made;
}

const std::string kFaulty =
    "[cache]\nblock_size = 8\nchunk_size = 16\nsink_tokens = 4\nwindow_tokens = 8\n"
    "on_fault = 'fail'\n[selector]\nplugin = 'kvasir.test.bad_selector'\nfault = 'error'\n";

// An engine of dense attention, quest, snapkv and streaming, in this order.
struct Scene {
  std::vector<const Entry*> entries = {&entry_named("dense"), &entry_named("quest"),
                                       &entry_named("snapkv"), &entry_named("streaming")};
  Bench bench;
  std::unique_ptr<Engine> engine;
  Soloists alone{kStep};

  explicit Scene(EngineOptions engine_options = options()) {
    engine = bench.engine(strategy_of(*entries[0]), engine_options);
    for (size_t i = 1; i < entries.size(); ++i)
      engine->add_strategy(bench.pipeline(strategy_of(*entries[i])));
  }
  StrategyId add(const std::string& toml) {
    return engine->add_strategy(bench.pipeline(bench.strategy(toml)));
  }
  bool is_open(SequenceId seq) const {
    try {
      engine->kv_len(seq);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/serving/scheduler");

TEST_CASE("requests of several strategies at once get what each gets alone") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  std::deque<Asked> asked;
  for (uint32_t i = 0; i < 8; ++i)
    asked.emplace_back(5 + i * 13, 4 + i % 3, i).submit(scheduler, i % 4);
  scheduler.run();
  for (uint32_t i = 0; i < 8; ++i) {
    asked[i].check(scene.alone, *scene.entries[i % 4], 16);
    CHECK(!scene.is_open(asked[i].end.seq));
    CHECK(asked[i].end.prompt_done == asked[i].n_prompt);
    CHECK(asked[i].end.decoded_tokens == asked[i].n_new);
    CHECK(asked[i].end.prefill_nanos > 0);
    CHECK(asked[i].end.decode_nanos > 0);
  }
  CHECK(asked[7].end.queued_nanos > asked[3].end.queued_nanos);  // four run at once
  CHECK(scheduler.n_running() == 0);
  CHECK(scheduler.memory_used() == 0);
  CHECK(!scheduler.step());
}

TEST_CASE("every running request decodes in every step, and no step exceeds the budget") {
  for (const uint32_t budget : {4u, 7u, 19u, 40u}) {
    CAPTURE(budget);
    Scene scene(options(kSequences, 40));
    Scheduler scheduler(*scene.engine, {.max_step_tokens = budget});
    std::deque<Asked> asked;
    for (uint32_t i = 0; i < 7; ++i) asked.emplace_back(10 + i * 9, 12, i).submit(scheduler, i % 4);
    struct Count {
      uint32_t prompt = 0, decoded = 0;
    };
    const auto counts = [&] {
      std::vector<Count> out;
      for (const Asked& a : asked) {
        const RequestStatus* s = a.has_ended ? &a.end : scheduler.find(a.id);
        out.push_back({s->prompt_done, s->decoded_tokens});
      }
      return out;
    };
    uint32_t largest = 0;
    for (;;) {
      std::vector<bool> decodes;
      for (const Asked& a : asked)
        decodes.push_back(!a.has_ended && scheduler.find(a.id)->state == RequestState::kDecoding);
      const auto before = counts();
      if (!scheduler.step()) break;
      const auto after = counts();
      uint32_t n = 0;
      for (size_t i = 0; i < asked.size(); ++i) {
        n += after[i].prompt - before[i].prompt + after[i].decoded - before[i].decoded;
        CHECK(after[i].decoded - before[i].decoded == (decodes[i] ? 1u : 0u));
      }
      CHECK(n <= budget);
      largest = std::max(largest, n);
    }
    CHECK(largest + 3 >= std::min(budget, 16u));
    for (const Asked& a : asked) CHECK(a.is_done());
    // Pieces are the same whatever else runs: those that the others leave when all decode.
    const uint32_t piece = std::min(16u, budget - 3);
    CHECK(scheduler.piece_tokens(0) == piece);
    for (const Asked& a : asked)
      for (size_t i = 0; i < a.progress.size(); ++i)
        CHECK(a.progress[i] == std::min(a.n_prompt, static_cast<uint32_t>(i + 1) * piece));
  }
}

TEST_CASE("prompts are read in turn: between two pieces of one, each other gets one at most") {
  Scene scene(options(6, 40));
  Scheduler scheduler(*scene.engine, {.max_step_tokens = 37});
  std::vector<RequestId> order;  // of pieces
  std::deque<Asked> asked;
  const auto submit = [&](uint32_t n_prompt) {
    Asked& one = asked.emplace_back(n_prompt, 2, static_cast<uint32_t>(asked.size()));
    Request request = one.request();
    const size_t at = asked.size() - 1;
    request.on_progress = [&, at](uint32_t, uint32_t) { order.push_back(asked[at].id); };
    one.id = scheduler.submit(std::move(request));
  };
  submit(300);
  submit(200);
  for (uint32_t step = 0; step < 60; ++step) {  // short ones keep coming
    if (step % 2 == 0) submit(17 + step);
    scheduler.step();
    if (step == 59) CHECK(asked[0].is_done());
  }
  scheduler.run();
  for (const Asked& a : asked) CHECK(a.is_done());
  for (const RequestId id : {asked[0].id, asked[1].id}) {
    auto at = std::find(order.begin(), order.end(), id);
    while (true) {
      const auto next = std::find(at + 1, order.end(), id);
      if (next == order.end()) break;
      std::vector<RequestId> between(at + 1, next);
      std::sort(between.begin(), between.end());
      CHECK(std::adjacent_find(between.begin(), between.end()) == between.end());
      CHECK(between.size() <= 5);  // max_sequences - 1
      at = next;
    }
  }
  // First come, first in.
  std::vector<RequestId> first;
  for (const RequestId id : order)
    if (std::find(first.begin(), first.end(), id) == first.end()) first.push_back(id);
  CHECK(std::is_sorted(first.begin(), first.end()));
}

TEST_CASE("a request is cancelled in every state, and the others do not notice") {
  for (const RequestState when :
       {RequestState::kQueued, RequestState::kPrefilling, RequestState::kDecoding}) {
    for (const bool is_paused : {false, true}) {
      CAPTURE(std::string(name(when)));
      CAPTURE(is_paused);
      Scene scene;
      Scheduler scheduler(*scene.engine);
      std::deque<Asked> asked;
      for (uint32_t i = 0; i < 5; ++i) asked.emplace_back(40, 20, i).submit(scheduler, i % 4);
      Asked& victim = asked[when == RequestState::kQueued ? 4 : 2];
      scheduler.step();
      while (scheduler.find(victim.id)->state != when) REQUIRE(scheduler.step());
      const SequenceId seq = scheduler.find(victim.id)->seq;
      if (is_paused) {
        scheduler.pause(victim.id);
        const RequestStatus before = *scheduler.find(victim.id);
        CHECK(before.is_paused);
        scheduler.step();
        scheduler.step();
        CHECK(scheduler.find(victim.id)->prompt_done == before.prompt_done);
        CHECK(scheduler.find(victim.id)->decoded_tokens == before.decoded_tokens);
      }
      scheduler.cancel(victim.id);
      CHECK(victim.has_ended);
      CHECK(victim.end.state == RequestState::kCancelled);
      CHECK(scheduler.find(victim.id) == nullptr);
      CHECK((seq == 0) == (when == RequestState::kQueued));
      CHECK(!scene.is_open(seq));
      scheduler.cancel(victim.id);  // again: nothing
      scheduler.run();
      for (uint32_t i = 0; i < 5; ++i)
        if (&asked[i] != &victim) asked[i].check(scene.alone, *scene.entries[i % 4], 16);
      CHECK(scheduler.memory_used() == 0);
      CHECK(scheduler.n_running() == 0);
    }
  }
}

TEST_CASE("callbacks may cancel, pause, resume and submit") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  Asked first(40, 8, 1), second(60, 8, 2), third(30, 4, 3), paused(50, 5, 4);
  second.submit(scheduler, 1);
  paused.submit(scheduler, 2);
  Request request = first.request();
  request.on_progress = [&](uint32_t done, uint32_t) {
    if (done == 16) scheduler.pause(paused.id);
    if (done != 32) return;
    scheduler.cancel(second.id);
    third.submit(scheduler, 3);
    scheduler.cancel(first.id);  // itself
  };
  request.on_end = [&](const RequestStatus& status) {
    first.end = status;
    first.has_ended = true;
    scheduler.resume(paused.id);
  };
  first.id = scheduler.submit(std::move(request));
  scheduler.run();
  CHECK(first.end.state == RequestState::kCancelled);
  CHECK(first.end.prompt_done == 32);
  CHECK(second.end.state == RequestState::kCancelled);
  third.check(scene.alone, *scene.entries[3], 16);
  paused.check(scene.alone, *scene.entries[2], 16);
}

TEST_CASE("a fault ends the request whose plugin is at fault, and no other") {
  for (const std::string where : {"select", "update"}) {
    CAPTURE(where);
    Scene scene;
    const StrategyId faulty =
        scene.add(kFaulty + "where = '" + where + "'\nfrom_call = 5\nunit = 'token'\n");
    Scheduler scheduler(*scene.engine);
    Asked good(40, 12, 1), bad(40, 12, 2), late(20, 12, 3);
    good.submit(scheduler);
    bad.submit(scheduler, faulty);
    late.submit(scheduler, 1);
    scheduler.run();
    CHECK(bad.end.state == RequestState::kFailed);
    CHECK(bad.end.error_text().find("bad_selector") != std::string::npos);
    CHECK(bad.end.seq == 0);
    good.check(scene.alone, *scene.entries[0], 16);
    late.check(scene.alone, *scene.entries[1], 16);
    CHECK(scheduler.memory_used() == 0);
  }
}

TEST_CASE("what the source of tokens does wrong ends its request only") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  Asked good(40, 6, 1), throws(10, 6, 2), outside(10, 6, 3);
  good.submit(scheduler);
  Request request = throws.request();
  request.next = [](std::span<const float>) -> std::optional<TokenId> {
    throw input_error("the grammar is empty");
  };
  scheduler.submit(std::move(request));
  request = outside.request();
  request.next = [](std::span<const float>) { return std::optional<TokenId>(300); };
  request.keep = true;  // an item that is refused has changed nothing
  scheduler.submit(std::move(request));
  scheduler.run();
  good.check(scene.alone, *scene.entries[0], 16);
  CHECK(throws.end.error_text() == "the grammar is empty");
  CHECK(outside.end.error_text().find("outside the vocabulary") != std::string::npos);
  CHECK(scene.engine->kv_len(outside.end.seq) == 10);
  scheduler.close(outside.end.seq);
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("strategies that can follow each other read one prompt, and then go their own ways") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  std::deque<Asked> asked;
  std::vector<Request> requests;
  for (StrategyId s = 0; s < 4; ++s) requests.push_back(asked.emplace_back(70, 9, 1).request(s));
  const auto ids = scheduler.submit_together(std::move(requests));
  scheduler.run();
  for (StrategyId s = 0; s < 4; ++s) {
    asked[s].check(scene.alone, *scene.entries[s], 16);
    CHECK(asked[s].end.prompt_read_by == ids[0]);
    CHECK((scene.engine->prefill_engagement(s).model_nanos > 0) == (s == 0));
  }
  CHECK(scene.engine->prefill_engagement(0).steps == 5);
}

TEST_CASE("who reads a prompt for others may be cancelled or paused") {
  for (const bool is_pause : {false, true}) {
    CAPTURE(is_pause);
    Scene scene;
    Scheduler scheduler(*scene.engine);
    std::deque<Asked> asked;
    std::vector<Request> requests;
    for (StrategyId s = 0; s < 3; ++s) requests.push_back(asked.emplace_back(70, 9, 1).request(s));
    asked[0].n_new = 9;
    const auto ids = scheduler.submit_together(std::move(requests));
    scheduler.step();
    scheduler.step();
    is_pause ? scheduler.pause(ids[0]) : scheduler.cancel(ids[0]);
    scheduler.run();
    CHECK(asked[1].end.prompt_read_by == ids[1]);
    CHECK(asked[2].end.prompt_read_by == ids[1]);
    for (StrategyId s = 1; s < 3; ++s) asked[s].check(scene.alone, *scene.entries[s], 16);
    if (!is_pause) continue;
    CHECK(scheduler.find(ids[0])->prompt_done == 32);
    scheduler.resume(ids[0]);
    scheduler.run();
    asked[0].check(scene.alone, *scene.entries[0], 16);
    CHECK(scheduler.memory_used() == 0);
  }
}

TEST_CASE("a fault of who reads a prompt for others: they read it again, without it") {
  Scene scene;
  const StrategyId faulty =
      scene.add(kFaulty + "where = 'update'\nfrom_call = 7\nunit = 'token'\n");
  REQUIRE(scene.engine->can_follow(faulty, 0));
  Scheduler scheduler(*scene.engine);
  Asked bad(70, 9, 1), dense(70, 9, 1), snapkv(70, 9, 1);
  std::vector<Request> requests;
  requests.push_back(bad.request(faulty));
  requests.push_back(dense.request(0));
  requests.push_back(snapkv.request(2));
  const auto ids = scheduler.submit_together(std::move(requests));
  scheduler.run();
  CHECK(bad.end.state == RequestState::kFailed);
  CHECK(dense.progress.front() == 16);
  CHECK(std::count(dense.progress.begin(), dense.progress.end(), 16) == 2);
  CHECK(dense.end.prompt_read_by == ids[1]);
  dense.check(scene.alone, *scene.entries[0], 16);
  snapkv.check(scene.alone, *scene.entries[2], 16);
  CHECK(scheduler.memory_used() == 0);
}

TEST_CASE("a follower's fault ends the follower") {
  Scene scene;
  const StrategyId faulty =
      scene.add(kFaulty + "where = 'update'\nfrom_call = 7\nunit = 'token'\n");
  Scheduler scheduler(*scene.engine);
  Asked bad(70, 9, 1), dense(70, 9, 1);
  std::vector<Request> requests;
  requests.push_back(dense.request(0));
  requests.push_back(bad.request(faulty));
  scheduler.submit_together(std::move(requests));
  scheduler.run();
  CHECK(bad.end.state == RequestState::kFailed);
  CHECK(bad.end.prompt_done > 0);
  CHECK(dense.progress.size() == 5);
  dense.check(scene.alone, *scene.entries[0], 16);
}

TEST_CASE("a kept sequence goes on with a further prompt, or from its logits") {
  Scene scene;
  Scheduler scheduler(*scene.engine);
  Asked company(60, 40, 9);
  company.submit(scheduler, 3);
  SequenceId seq = 0;
  std::vector<float> last;
  Logits got;
  const auto ask = [&](std::vector<TokenId> prompt, std::vector<TokenId> answer) {
    Request request;
    request.strategy = 1;
    if (seq != 0) request.seq = seq;
    if (prompt.empty()) request.logits = last;
    request.prompt = std::move(prompt);
    request.max_new_tokens = static_cast<uint32_t>(answer.size());
    request.keep = true;
    request.next = forced_tokens(std::move(answer), [&](uint32_t, std::span<const float> logits) {
      last.assign(logits.begin(), logits.end());
      got.push_back(last);
    });
    request.on_end = [&](const RequestStatus& status) { seq = status.seq; };
    const RequestId id = scheduler.submit(std::move(request));
    while (scheduler.find(id)) REQUIRE(scheduler.step());
    REQUIRE(seq != 0);
  };
  const auto first = some_tokens(30, 5), second = some_tokens(20, 6);
  ask(first, {1, 2, 3});
  ask({}, {4, 5});
  ask(second, {6});
  CHECK(scene.engine->kv_len(seq) == 56);
  CHECK(scheduler.memory_used().main >
        scene.engine->sequence_bytes(1, 56).main);  // and the company's
  scheduler.run();
  CHECK(scheduler.memory_used() == scene.engine->sequence_bytes(1, 56));
  company.check(scene.alone, *scene.entries[3], 16);
  const auto tokens = [](std::vector<TokenId> ids) { return Op{Op::Kind::kTokens, 0, ids}; };
  const Logits want =
      scene.alone.play(*scene.entries[1], {{Op::Kind::kBeginPrompt, 30, {}},
                                           tokens({first.begin(), first.begin() + 16}),
                                           tokens({first.begin() + 16, first.end()}),
                                           tokens({1}),
                                           tokens({2}),
                                           tokens({3}),
                                           tokens({4}),
                                           tokens({5}),
                                           {Op::Kind::kBeginPrompt, 20, {}},
                                           tokens({second.begin(), second.begin() + 16}),
                                           tokens({second.begin() + 16, second.end()}),
                                           tokens({6})});
  // After prompts and tokens; the second request began with the logits the first ended with.
  check_as_alone(got,
                 {want[1], want[2], want[3], want[4], want[4], want[5], want[6], want[8], want[9]},
                 kCompany);
  scheduler.close(seq);
  CHECK(scheduler.memory_used() == 0);
}
