// budget_tokens is one idea everywhere: whatever the selector, a layer and kv head attends at each
// step to so many tokens beyond the forced parts, and to all of them where there are enough.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <sstream>

#include "tests/strategies/table.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8, kLayers = 3, kKvHeads = 2, kPrompt = 100, kSteps = 24;

// How a selector keeps its budget.
struct BudgetEntry {
  std::string plugin;
  std::string options{};  // TOML of its table, beside budget_tokens
  std::string more{};     // further tables, or keys of [cache] before them
  bool blocks = false;    // chosen and forced are whole blocks
  // Plans follow the attention they learn from: a step also sees the token (the block) that left
  // the window since, until its own plan.
  uint32_t late = 0;
  // The same where no window was forced when the prompt ended, but its last token.
  uint32_t late_windowless = 0;
  uint32_t least_window = 0;      // with fewer tokens it has nothing to go by
  bool mean_over_layers = false;  // the budget is that of all layers together
  std::string native{};           // a key for the same thing: setting both is refused
};

const std::string kMinMax = "[representative]\nplugin = 'kvasir.minmax'\n";

std::vector<BudgetEntry> make_entries() {
  std::vector<BudgetEntry> entries;
  const std::string prompt_mode = "window_mode = 'prompt'\n";
  entries.push_back({.plugin = "block_topk",
                     .more = kMinMax,
                     .blocks = true,
                     .native = "second_block_count = 3"});
  entries.push_back({.plugin = "infllm",
                     .options = "exc_block_size = 16\n",
                     .more = "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\n",
                     .blocks = true,
                     .least_window = 1,
                     .native = "topk = 3"});
  entries.push_back({.plugin = "preselect",
                     .options = "window_size = 16\n",
                     .more = prompt_mode,
                     .blocks = true,
                     .native = "max_capacity_prompt = 90"});
  entries.push_back({.plugin = "snapkv",
                     .options = "window_size = 16\n",
                     .more = prompt_mode,
                     .late_windowless = 1,
                     .native = "max_capacity_prompt = 90"});
  entries.push_back({.plugin = "pyramidkv",
                     .options = "window_size = 16\nbeta = 4\n",
                     .more = prompt_mode,
                     .mean_over_layers = true,
                     .native = "max_capacity_prompt = 90"});
  entries.push_back({.plugin = "pyramidkv",
                     .options = "window_size = 16\nbeta = 4\ncompat = 'kvpress'\n",
                     .more = prompt_mode,
                     .mean_over_layers = true});
  entries.push_back({.plugin = "h2o", .late = 1, .native = "hh_size = 12"});
  entries.push_back({.plugin = "tova", .late = 1, .native = "cache_size = 90"});
  entries.push_back({.plugin = "infinigen",
                     .options = "alpha = 1e30\npartial_weight_ratio = 0.4\n",
                     .native = "budget = 0.5"});
  entries.push_back({.plugin = "magicpig", .options = "K = 2\nL = 24\n", .more = prompt_mode});
  entries.push_back({.plugin = "twilight", .options = "p = 1.0\n"});
  entries.push_back({.plugin = "oracle", .blocks = true, .native = "p = 0.5"});
  entries.push_back({.plugin = "oracle", .options = "unit = 'token'\n"});
  entries.push_back({.plugin = "random", .blocks = true});
  entries.push_back({.plugin = "random", .options = "unit = 'token'\n"});
  entries.push_back({.plugin = "streaming"});
  entries.push_back({.plugin = "streaming", .options = "evict = true\n"});
  entries.push_back({.plugin = "duoattention", .options = "sparsity = 1.0\n"});
  entries.push_back({.plugin = "duoattention", .options = "sparsity = 1.0\nevict = true\n"});
  return entries;
}

struct Forced {
  uint32_t sink, window;
};
uint32_t rounded_up(uint32_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// Tokens of `n` that are attended whatever is selected: sink, window or what came since the prompt,
// and the current token; outward to whole blocks where blocks are chosen.
uint32_t forced_tokens(const BudgetEntry& entry, const Forced& forced, uint32_t n) {
  const bool since_prompt = entry.more.find("window_mode") != std::string::npos;
  const uint32_t end = since_prompt ? kPrompt : n;
  uint32_t window_begin = std::min(end - std::min(end, forced.window), n - 1);
  uint32_t sink = forced.sink;
  if (entry.blocks) {
    window_begin = window_begin / kBlock * kBlock;
    sink = rounded_up(sink);
  }
  return n - window_begin + std::min(sink, window_begin);
}

std::string toml_of(const BudgetEntry& entry, const Forced& forced, uint32_t budget) {
  const bool of_cache = entry.more.find("window_mode") == 0;
  return "[cache]\nblock_size = 8\nchunk_size = 16\non_fault = 'fail'\nsink_tokens = " +
         std::to_string(forced.sink) + "\nwindow_tokens = " + std::to_string(forced.window) + "\n" +
         (of_cache ? entry.more : "") + "[selector]\nplugin = 'kvasir." + entry.plugin + "'\n" +
         entry.options + "budget_tokens = " + std::to_string(budget) + "\n" +
         (of_cache ? "" : entry.more);
}

// Decodes after a prompt and gives every count of tokens attended to check(step's kv_len, layer,
// count).
template <class Check>
void attend(const std::string& toml, const Check& check) {
  Bench bench(8, kKvHeads);
  EngineOptions options;
  bool armed = false;
  uint32_t n = kPrompt, n_calls = 0;
  options.on_attend = [&](uint32_t layer, uint64_t, uint32_t, std::span<const uint32_t> tokens) {
    if (!armed) return;
    ++n_calls;
    check(n, layer, static_cast<uint32_t>(tokens.size()));
  };
  const auto engine = bench.engine(toml, options);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(kPrompt, 11));
  armed = true;
  for (uint32_t i = 0; i < kSteps; ++i) {
    ++n;
    decode(*engine, seq, static_cast<TokenId>(i * 13 % 300));
  }
  CHECK(n_calls == kSteps * kLayers * kKvHeads);
  CHECK(engine->decode_engagement().fallbacks == 0);
}

}  // namespace

TEST_SUITE_BEGIN("strategies/budget");

TEST_CASE("every shipped selector takes budget_tokens") {
  const auto all = make_entries();
  for (const std::string& name : shipped_selectors()) {
    if (name == "dense") continue;  // its own case
    CAPTURE(name);
    CHECK(std::any_of(all.begin(), all.end(),
                      [&](const BudgetEntry& entry) { return entry.plugin == name; }));
  }
}

TEST_CASE("what is attended is the budget and the forced parts, which may be none") {
  for (const BudgetEntry& entry : make_entries())
    for (const Forced forced : {Forced{0, 0}, {0, 9}, {5, 0}, {5, 17}}) {
      if (forced.window < entry.least_window) continue;
      for (const uint32_t budget : {16u, 29u}) {
        CAPTURE(entry.plugin);
        CAPTURE(entry.options);
        CAPTURE(forced.sink);
        CAPTURE(forced.window);
        CAPTURE(budget);
        const uint32_t chosen = entry.blocks ? budget / kBlock * kBlock : budget;
        uint32_t over = 0, under = 0;
        uint64_t of_layers = 0, allowed = 0;
        attend(toml_of(entry, forced, budget), [&](uint32_t n, uint32_t, uint32_t attended) {
          const uint32_t want = forced_tokens(entry, forced, n) + chosen;
          over += attended > want + entry.late + (forced.window == 0 ? entry.late_windowless : 0);
          under += attended < want;
          of_layers += attended;
          allowed += want;
        });
        if (entry.mean_over_layers) {
          CHECK(of_layers <= allowed + uint64_t{kSteps} * kLayers * kKvHeads);  // its rounding
          CHECK(of_layers + uint64_t{kSteps} * kLayers * kKvHeads >= allowed);
          continue;
        }
        CHECK(over == 0);
        CHECK(under == 0);
      }
    }
}

TEST_CASE("a native key and budget_tokens are two words for one thing: both at once are refused") {
  for (const BudgetEntry& entry : make_entries()) {
    if (entry.native.empty()) continue;
    CAPTURE(entry.plugin);
    Bench bench(8, kKvHeads);
    const BudgetEntry both{entry.plugin, entry.options + entry.native + "\n", entry.more};
    const std::string text = error_of([&] { bench.engine(toml_of(both, {5, 17}, 16)); });
    CHECK(text.find("budget_tokens") != std::string::npos);
    CHECK(text.find("keep one of them") != std::string::npos);
  }
}

TEST_CASE("budget_tokens on the command line overrules what a preset says in its own words") {
  Bench bench(8, kKvHeads);
  for (const auto& file :
       std::filesystem::directory_iterator(KVASIR_SOURCE_DIR "/configs/strategies")) {
    const std::string preset = file.path().stem();
    CAPTURE(preset);
    const Entry plain{.name = preset, .preset = preset};
    const bool is_chain = strategy_of(plain).selectors.size() > 1;
    if (preset == "dense") continue;
    const std::string key = is_chain ? "selector.0.budget_tokens" : "selector.budget_tokens";
    const auto engine = bench.engine(strategy_of(plain, "cache.dense_layers=[0] " + key + "=64"));
    const SelectorLimits& limits = engine->pipeline().selectors[0]->limits();
    uint64_t tokens = limits.max_units * (limits.unit == KVASIR_UNIT_BLOCK ? kBlock : 1);
    if (preset == "pyramidkv") tokens = (tokens + 64 / 20) / 2;  // that of its first layer
    if (preset == "duoattention") continue;                      // retrieval heads have no limit
    CHECK(tokens == 64);
  }
}

TEST_CASE("dense takes a budget that covers the context, and refuses one that it would not keep") {
  Bench bench(8, kKvHeads);
  attend(toml_of({"dense"}, {5, 17}, 2048),
         [&](uint32_t n, uint32_t, uint32_t attended) { CHECK(attended == n); });
  const std::string text = error_of([&] { bench.engine(toml_of({"dense"}, {5, 17}, 2047)); });
  CHECK(text.find("budget_tokens = 2047") != std::string::npos);
}
