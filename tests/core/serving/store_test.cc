// Requests whose prompts begin with what a storage kept of earlier ones: the same logits, bit for
// bit, and a count of what was not computed.
// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "tests/core/serving/asked.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

std::string toml(const std::string& selector, const std::string& storage) {
  return "[cache]\nblock_size = 8\nchunk_size = 16\nsink_tokens = 4\nwindow_tokens = 8\n"
         "[selector]\nplugin = 'kvasir." +
         selector + "'\n" + (selector == "dense" ? "" : "budget_tokens = 16\n") +
         (selector == "block_topk" ? "[representative]\nplugin = 'kvasir.minmax'\n" : "") +
         "[storage]\nplugin = 'kvasir." + storage + "\ntype_k = 'f32'\ntype_v = 'f32'\n";
}

// Dense attention, block_topk, which reads prompts with it, and snapkv, which must compute them.
struct Scene {
  Bench bench;
  std::unique_ptr<Engine> engine;
  explicit Scene(const std::string& store) {
    const std::string storage = store.empty() ? "dram'" : "tiered'\nstore = '" + store + "'";
    EngineOptions options;
    options.max_sequences = 4;
    options.max_step_tokens = 19;
    options.model_hash = [] { return uint64_t{1}; };
    engine = bench.engine(toml("dense", storage), options);
    for (const char* selector : {"block_topk", "snapkv"})
      engine->add_strategy(bench.pipeline(bench.strategy(toml(selector, storage))));
  }
};

// Two strategies over a prompt together, the third alone, since it computes for all who read with
// it, and one of them over a longer prompt.
std::deque<Asked> ask(const std::string& store, bool restores = true) {
  Scene scene(store);
  Scheduler scheduler(*scene.engine, {.restores = restores});
  std::deque<Asked> asked;
  std::vector<Request> together;
  for (StrategyId strategy = 0; strategy < 2; ++strategy)
    together.push_back(asked.emplace_back(67, 5, 1).request(strategy));
  scheduler.submit_together(std::move(together));
  scheduler.run();
  asked.emplace_back(67, 5, 1).submit(scheduler, 2);
  scheduler.run();
  asked.emplace_back(90, 3, 1).submit(scheduler, 1);  // begins as they did
  scheduler.run();
  CHECK(scheduler.memory_used() == 0);
  for (const Asked& one : asked) {
    CAPTURE(one.end.error_text());
    REQUIRE(one.is_done());
  }
  return asked;
}

}  // namespace

TEST_SUITE_BEGIN("core/serving/store");

TEST_CASE("what a store has is not computed, and the logits are those of a computed prompt") {
  const TempDir dir;
  const std::string store = dir.path("store");
  const auto want = ask("");
  const auto first = ask(store), second = ask(store), computed = ask(store, false);
  const auto restored = [](const std::deque<Asked>& asked) {
    std::vector<uint32_t> out;
    for (const Asked& one : asked) out.push_back(one.end.restored_tokens);
    return out;
  };
  CHECK(restored(want) == std::vector<uint32_t>{0, 0, 0, 0});
  auto by_first = restored(first);
  CHECK(by_first.back() <= 64);  // of what is written by then
  by_first.back() = 0;
  CHECK(by_first == std::vector<uint32_t>{0, 0, 0, 0});
  CHECK(restored(second) == std::vector<uint32_t>{64, 64, 0, 88});
  CHECK(restored(computed) == std::vector<uint32_t>{0, 0, 0, 0});
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    for (const auto* got : {&first, &second, &computed}) {
      CHECK((*got)[i].logits == want[i].logits);
      CHECK((*got)[i].end.prompt_done == want[i].n_prompt);
    }
  }
  CHECK(second[1].end.prompt_read_by ==
        second[0].end.prompt_read_by);  // together, behind what was there
  CHECK(second[0].progress == std::vector<uint32_t>{67});
}

TEST_CASE("a store that lacks the middle gives what is before it") {
  const TempDir dir;
  const std::string store = dir.path("store");
  ask(store);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store))
    if (entry.path().filename().string().find("-3-1") != std::string::npos)
      std::filesystem::remove(entry.path());
  const auto want = ask("");
  const auto got = ask(store);
  CHECK(got[0].end.restored_tokens == 24);
  CHECK(got[1].end.restored_tokens == 24);
  for (size_t i = 0; i < want.size(); ++i) CHECK(got[i].logits == want[i].logits);
}

TEST_SUITE_END();
