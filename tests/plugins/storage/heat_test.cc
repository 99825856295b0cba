// Blocks that stay in memory because of what kvasir.tiered was told of them.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/block_heat.h>

#include "tests/plugins/storage/tiered_fixture.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const kvasir_block_heat& heat_of(Tiered& t) {
  const auto* table = static_cast<const kvasir_block_heat*>(
      t.plugin->base.get_extension(t.plugin.self(), KVASIR_EXT_BLOCK_HEAT));
  REQUIRE(table);
  return *table;
}

struct Value {
  uint32_t block;
  float value;
};
void tell(Tiered& t, const std::vector<Value>& values) {
  std::vector<kvasir_block_key> keys;
  std::vector<float> numbers;
  for (const Value& v : values) {
    keys.push_back(Tiered::key(v.block));
    numbers.push_back(v.value);
  }
  REQUIRE(heat_of(t).heat(t.plugin.self(), keys.data(), numbers.data(),
                          static_cast<uint32_t>(keys.size()), sizeof keys[0],
                          t.plugin.err()) == KVASIR_OK);
}

OptionValues options(const std::string& strategy) {
  return {{"cache_strategy", strategy}, {"cached_blocks", int64_t{2}}};
}

// Five blocks are stored and settled with blocks 3 and 4 in memory; 0 is read back afterwards.
uint32_t who_left(Tiered& t, const std::vector<std::vector<Value>>& steps) {
  for (uint32_t block = 0; block < 5; ++block) t.store(block, 100.0f * static_cast<float>(block));
  t.settle(5, 4);
  REQUIRE(t.fetch({3, 4}, 1).status == KVASIR_OK);
  t.check_blocks({3, 4}, [](uint32_t block) { return 100.0f * static_cast<float>(block); });
  for (const auto& step : steps) tell(t, step);
  REQUIRE(t.fetch({0}, 2).status == KVASIR_OK);
  t.check_bytes(0, 0.0f);
  const bool has_3 = t.resident(3), has_4 = t.resident(4);
  CHECK(has_3 != has_4);
  return has_3 ? 4 : 3;
}

}  // namespace

TEST_SUITE("plugins/storage/heat") {
  TEST_CASE("each order says what it wants to be told") {
    for (const auto& [strategy, wanted] : {std::pair{"lru", KVASIR_HEAT_NONE},
                                           {"fifo", KVASIR_HEAT_NONE},
                                           {"counter", KVASIR_HEAT_NONE},
                                           {"lru-s", KVASIR_HEAT_MASS},
                                           {"selector", KVASIR_HEAT_SCORE}}) {
      Tiered t(options(strategy));
      CHECK(heat_of(t).wants(t.plugin.self()) == wanted);
    }
  }

  TEST_CASE("the block with the least attention leaves, whichever was used last") {
    for (const uint32_t heavy : {3u, 4u}) {
      Tiered t(options("lru-s"));
      CHECK(who_left(t, {{{heavy, 0.6f}, {7 - heavy, 0.2f}}}) == 7 - heavy);
    }
  }

  TEST_CASE("attention fades by score_decay with every step that tells of any") {
    for (const double decay : {0.1, 0.9}) {
      OptionValues more = options("lru-s");
      more["score_decay"] = decay;
      Tiered t(more);
      CHECK(who_left(t, {{{3, 0.6f}, {4, 0.01f}}, {{4, 0.2f}}}) == (decay == 0.1 ? 3 : 4));
    }
  }

  TEST_CASE("the block that the selector scored least leaves, by its last score") {
    for (const uint32_t good : {3u, 4u}) {
      Tiered t(options("selector"));
      CHECK(who_left(t, {{{7 - good, 1.0f}, {good, 0.1f}}, {{good, 0.9f}, {7 - good, 0.5f}}}) ==
            7 - good);
    }
  }

  TEST_CASE("blocks that are not there are not told of, and a foreign handle is refused") {
    Tiered t(options("lru-s"));
    t.store(0, 1.0f);
    tell(t, {{0, 0.5f}, {9, 0.5f}});
    kvasir_block_key key = Tiered::key(0);
    key.handle = 77;
    const float value = 1.0f;
    CHECK(heat_of(t).heat(t.plugin.self(), &key, &value, 1, sizeof key, t.plugin.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(t.plugin.text().find("heat") != std::string::npos);
  }
}
