// Saved sequences go on as if nothing had happened, and damaged ones are refused.
// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <cstring>
#include <random>

#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache =
    "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\nchunk_size = 16\n";
const std::string kStrategies[] = {
    "[selector]\nplugin = 'dense'\n",
    "[selector]\nplugin = 'streaming'\n",
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 16\n[representative]\nplugin = 'minmax'\n",
    // What keeps state per sequence of its own.
    "[selector]\nplugin = 'magicpig'\nK = 3\nL = 6\n",
    "[selector]\nplugin = 'magicpig'\nK = 4\nL = 9\ntable_layout = 'csr'\nstatic = 'snapkv'\n"
    "static_tokens = 5\nbudget_tokens = 14\n",
    "[selector]\nplugin = 'infinigen'\nbudget_tokens = 12\nrefresh_every = 8\npool_limit = 30\n",
    "[selector]\nplugin = 'snapkv'\nbudget_tokens = 16\nwindow_size = 20\nmode = 'retrieve'\n",
    "[selector]\nplugin = 'pyramidkv'\nbudget_tokens = 16\nwindow_size = 20\n",
    "[selector]\nplugin = 'tova'\nbudget_tokens = 16\n",
    "[[selector]]\nplugin = 'preselect'\npreselect_block_count = 4\nwindow_size = 20\n"
    "[[selector]]\nplugin = 'block_topk'\nbudget_tokens = 16\n[representative]\nplugin = "
    "'minmax'\n",
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 16\n[representative]\nplugin = 'dynamic'\n"
    "last_queries = 20\n",
    "[selector]\nplugin = 'infllm'\nbudget_tokens = 16\nexc_block_size = 16\n[representative]\n"
    "plugin = 'dynamic'\nmass = 'window'\n",
    // What keeps none.
    "[selector]\nplugin = 'h2o'\nbudget_tokens = 12\n",
    "[[selector]]\nplugin = 'block_topk'\nbudget_tokens = 24\n[[selector]]\nplugin = 'twilight'\n"
    "p = 0.5\n[representative]\nplugin = 'minmax'\n",
    "[selector]\nplugin = 'duoattention'\n",
    "[selector]\nplugin = 'oracle'\nbudget_tokens = 16\n",
    "[selector]\nplugin = 'random'\nbudget_tokens = 16\n",
};

std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  const size_t body = bytes.size() - sizeof(uint64_t);
  const uint64_t sum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &sum, sizeof(sum));
  return bytes;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/saved_sequence");

TEST_CASE("a loaded sequence continues like the one that was saved, in another engine") {
  for (const std::string& strategy : kStrategies)
    for (const uint32_t n_decoded : {0u, 13u}) {
      CAPTURE(strategy);
      CAPTURE(n_decoded);
      Bench bench(8, 2);
      const auto first = bench.engine(kCache + strategy), second = bench.engine(kCache + strategy);
      const auto seq = first->open();
      prefill(*first, seq, some_tokens(70, 4));
      for (uint32_t i = 0; i < n_decoded; ++i) decode(*first, seq, static_cast<TokenId>(i * 5));
      const auto bytes = first->save(seq);
      const auto copy = second->load(bytes, "saved");
      CHECK(second->kv_len(copy) == 70 + n_decoded);
      CHECK(second->kv_bytes(copy) == first->kv_bytes(seq));
      CHECK(std::ranges::equal(second->tokens(copy), first->tokens(seq)));
      for (uint32_t i = 0; i < 60; ++i) {
        CAPTURE(i);
        const auto token = static_cast<TokenId>(i * 11 % 300);
        REQUIRE(decode(*second, copy, token) == decode(*first, seq, token));
      }
      CHECK(prefill(*second, copy, some_tokens(20, 8)) == prefill(*first, seq, some_tokens(20, 8)));
      CHECK(second->save(copy) == first->save(seq));
    }
}

TEST_CASE("so does one whose prompt was stopped while its last queries voted") {
  for (const std::string& strategy : kStrategies) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    const auto first = bench.engine(kCache + strategy), second = bench.engine(kCache + strategy);
    const auto seq = first->open();
    const auto stop = [](uint32_t done, uint32_t) { return done < 64; };
    REQUIRE(first->prefill(seq, some_tokens(70, 4), {}, {stop, {}}) == 64);
    const auto copy = second->load(first->save(seq), "saved");
    CHECK(second->save(copy) == first->save(seq));
    for (TokenId token = 0; token < 10; ++token)
      REQUIRE(decode(*second, copy, token) == decode(*first, seq, token));
    CHECK(prefill(*second, copy, some_tokens(6, 8)) == prefill(*first, seq, some_tokens(6, 8)));
    REQUIRE(decode(*second, copy, 3) == decode(*first, seq, 3));
  }
}

TEST_CASE("another strategy, model or a plugin that cannot save is named") {
  Bench bench(8, 2), other(8, 8);
  const auto engine = bench.engine(kCache + kStrategies[2]);
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(40, 4));
  const auto bytes = engine->save(seq);
  const auto refusal = [&](Engine& by) {
    try {
      by.load(bytes, "saved");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal(*bench.engine(kCache + "window_flush_tokens = 0\n" + kStrategies[2])) ==
        "accepted");
  CHECK(refusal(*bench.engine(kCache + kStrategies[0])).find("block_topk") != std::string::npos);
  CHECK(refusal(*other.engine(kCache + kStrategies[2])).find("kv heads = 2") != std::string::npos);
  const auto rounding =
      Model::load(*tiny_model(8, 2).file, test_pool(), {.compute = Compute::kInt8});
  const char* differs =
      plain_compute() == Compute::kF32 ? "(unless --compute f32) = 0" : "compute = f32";
  CHECK(refusal(*bench.engine(*rounding, kCache + kStrategies[2])).find(differs) !=
        std::string::npos);
  const auto told = bench.engine(kCache + "[selector]\nplugin = 'kvasir.test.told'\n");
  const auto stateful = told->open();
  prefill(*told, stateful, some_tokens(40, 4));
  CHECK_THROWS_WITH_AS(told->save(stateful), doctest::Contains("kvasir.test.told"), Error);
}

TEST_CASE("a plugin refuses bytes that are cut off, and can save again what it accepts") {
  uint32_t n_plugins = 0, n_full = 0;
  for (const std::string& strategy : kStrategies) {
    CAPTURE(strategy);
    Bench bench(8, 2);
    const auto engine = bench.engine(kCache + strategy);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(60, 4));
    for (TokenId token = 0; token < 10; ++token) decode(*engine, seq, token);
    const auto stop = [](uint32_t done, uint32_t) { return done < 16; };
    engine->prefill(seq, some_tokens(20, 4), {}, {stop, {}});  // votes are on their way
    std::vector<Instance*> plugins;
    for (const auto& selector : engine->pipeline().selectors) plugins.push_back(selector.get());
    if (engine->pipeline().representative)
      plugins.push_back(engine->pipeline().representative.get());
    for (Instance* plugin : plugins) {
      if (!plugin->keeps_sequences()) continue;
      const auto bytes = plugin->save_state(seq);
      ++n_plugins;
      n_full += bytes.size() > 200;  // the others have nothing at hand in mid-prompt
      const auto is_accepted = [&](const std::vector<std::byte>& other) {
        try {
          plugin->load_state(seq, other);
          return true;
        } catch (const PluginError&) {
          return false;
        }
      };
      for (size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 500)
        REQUIRE(!is_accepted({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n)}));
      auto longer = bytes;
      longer.push_back({});
      REQUIRE(!is_accepted(longer));
      std::mt19937 random(1);
      uint32_t n_accepted = 0;
      for (uint32_t i = 0; i < 1000; ++i) {
        auto other = bytes;
        const size_t n = i % 2 ? other.size() : std::min<size_t>(other.size(), 100);
        for (uint32_t k = 0; k <= i % 3; ++k)
          other[random() % n] = static_cast<std::byte>(random());
        if (!is_accepted(other)) continue;
        ++n_accepted;
        REQUIRE(plugin->save_state(seq) == other);
      }
      CHECK(n_accepted < 1000);
      CHECK(is_accepted(bytes));
    }
  }
  CHECK(n_plugins == 9);
  CHECK(n_full == 7);
}

TEST_CASE("damage is refused, or harmless when the checksum was made to fit") {
  Bench bench(8, 2);
  for (const std::string& strategy : std::span(kStrategies).subspan(2)) {
    CAPTURE(strategy);
    const auto engine = bench.engine(kCache + strategy);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(70, 4));
    for (uint32_t i = 0; i < 20; ++i) decode(*engine, seq, 7);
    const auto bytes = engine->save(seq);
    std::mt19937 random(5);
    for (uint32_t i = 0; i < 400; ++i) {
      const auto place = [&](size_t size) {  // the head, the plugins' own at the tail, or anywhere
        const size_t near = random() % std::min<size_t>(size, 4000);
        return i % 2 ? random() % size : i % 4 ? near : size - 1 - near;
      };
      auto damaged = bytes;
      if (i % 4 == 0) damaged.resize(random() % bytes.size());
      if (damaged.size() > 16)
        for (uint32_t j = 0; j <= i % 3; ++j)
          damaged[place(damaged.size())] ^= static_cast<std::byte>(1 + random() % 255);
      if (i % 8 == 1) {
        CHECK_THROWS_AS(engine->load(damaged, "saved"), Error);
        continue;
      }
      if (damaged.size() < 16) continue;
      try {
        const auto copy = engine->load(sealed(damaged), "saved");
        decode(*engine, copy, 3);
        if (i % 16 == 0) prefill(*engine, copy, some_tokens(20, 8));
        engine->close(copy);
      } catch (const Error&) {
      }
    }
  }
}
