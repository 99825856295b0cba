// Random requests of a scheduler: every one that is not cancelled gets what it would have got
// alone.
// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "tests/core/serving/asked.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kSequences = 5, kMaxStep = 48;

struct Mix {
  std::vector<const Entry*> entries;
  Bench bench;
  std::unique_ptr<Engine> engine;

  explicit Mix(std::vector<const Entry*> some)
      : entries(std::move(some)), bench(8, 2, entries[0]->head_dim) {
    EngineOptions options;
    options.max_sequences = kSequences;
    options.max_step_tokens = kMaxStep;
    engine = bench.engine(strategy_of(*entries[0]), options);
    for (size_t i = 1; i < entries.size(); ++i)
      engine->add_strategy(bench.pipeline(strategy_of(*entries[i])));
  }
};

struct Play {
  Mix& mix;
  Dice dice;
  Scheduler scheduler;
  std::deque<Asked> asked{};
  std::vector<StrategyId> strategy{};

  Play(Mix& of, uint32_t seed)
      : mix(of),
        dice(seed),
        scheduler(*of.engine,
                  {.max_step_tokens = dice.between(kSequences, kMaxStep),
                   .max_sequences = dice.between(1, kSequences),
                   .memory_bytes = dice.between(1, 6) * of.engine->sequence_bytes(0, 120)}) {}

  StrategyId any() { return dice.below(static_cast<uint32_t>(mix.entries.size())); }
  Asked& make(uint32_t n_prompt, uint32_t seed, StrategyId of) {
    strategy.push_back(of);
    return asked.emplace_back(n_prompt, dice.below(12), seed);
  }
  void submit() {
    const uint32_t n_prompt = dice.between(1, 60), seed = dice.below(1000);
    if (dice.one_in(3)) {  // several strategies, one prompt
      std::vector<Request> requests;
      const size_t begin = asked.size();
      for (StrategyId s = 0; s < mix.entries.size(); ++s)
        requests.push_back(make(n_prompt, seed, s).request(s));
      const auto ids = scheduler.submit_together(std::move(requests));
      for (size_t i = 0; i < ids.size(); ++i) asked[begin + i].id = ids[i];
      return;
    }
    const StrategyId s = any();
    make(n_prompt, seed, s).submit(scheduler, s);
  }
  RequestId some() { return asked[dice.below(static_cast<uint32_t>(asked.size()))].id; }

  void run() {
    submit();
    for (uint32_t i = 0; i < 30; ++i) {
      const uint32_t what = dice.below(12);
      if (what == 0) submit();
      if (what == 1) scheduler.pause(some());
      if (what == 2) scheduler.resume(some());
      if (what == 3 && dice.one_in(2)) scheduler.cancel(some());
      scheduler.step();
    }
    for (const Asked& a : asked) scheduler.resume(a.id);
    scheduler.run();
  }
};

}  // namespace

TEST_SUITE_BEGIN("core/serving/random_requests");

TEST_CASE("random requests over all strategies are answered as if each were alone") {
  const uint32_t n_plays = few_cases() ? 30 : 400;
  Soloists alone(kMaxStep);
  uint32_t n_done = 0, n_cancelled = 0, n_shared = 0;
  for (const uint32_t seed : seeds(n_plays)) {
    CAPTURE(seed);
    Dice dice(seed);
    const Entry& first = entries()[seed % entries().size()];
    const std::vector<const Entry*> others = entries_of(first.head_dim);
    std::vector<const Entry*> some{&first};
    for (int i = 0; i < 2; ++i)
      some.push_back(others[dice.below(static_cast<uint32_t>(others.size()))]);
    Mix mix(some);
    Play play(mix, seed);
    try {
      play.run();
    } catch (const Error& e) {  // a request that needs more memory than there is
      REQUIRE(e.kind() == ErrorKind::kResource);
      continue;
    }
    for (size_t i = 0; i < play.asked.size(); ++i) {
      const Asked& a = play.asked[i];
      REQUIRE(a.has_ended);
      n_cancelled += a.end.state == RequestState::kCancelled;
      if (a.end.state == RequestState::kCancelled) continue;
      a.check(alone, *some[play.strategy[i]], play.scheduler.piece_tokens(play.strategy[i]));
      ++n_done;
      n_shared += a.end.prompt_read_by != a.id;
    }
    CHECK(play.scheduler.memory_used() == 0);
  }
  if (std::getenv("KVASIR_TEST_SEED")) return;
  CHECK(n_done >= 2 * n_plays);
  CHECK(n_cancelled >= n_plays / 10);
  CHECK(n_shared >= n_plays / 10);
}
