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
    "[selector]\nplugin = 'kvasir.h2o'\nhh_size = 12\n",
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
  const auto snapkv = bench.engine(kCache + "[selector]\nplugin = 'kvasir.snapkv'\n");
  const auto stateful = snapkv->open();
  prefill(*snapkv, stateful, some_tokens(40, 4));
  CHECK_THROWS_WITH_AS(snapkv->save(stateful), doctest::Contains("kvasir.snapkv"), Error);
}

TEST_CASE("damage is refused, or harmless when the checksum was made to fit") {
  Bench bench(8, 2);
  for (const std::string& strategy : {kStrategies[2], kStrategies[3]}) {
    const auto engine = bench.engine(kCache + strategy);
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(70, 4));
    for (uint32_t i = 0; i < 20; ++i) decode(*engine, seq, 7);
    const auto bytes = engine->save(seq);
    std::mt19937 random(5);
    for (uint32_t i = 0; i < 400; ++i) {
      auto damaged = bytes;
      if (i % 4 == 0) damaged.resize(random() % bytes.size());
      if (damaged.size() > 16)
        for (uint32_t j = 0; j <= i % 3; ++j)
          damaged[i % 2 ? random() % damaged.size()
                        : random() % std::min<size_t>(damaged.size(), 4000)] ^=
              static_cast<std::byte>(1 + random() % 255);
      if (i % 8 == 1) {
        CHECK_THROWS_AS(engine->load(damaged, "saved"), Error);
        continue;
      }
      if (damaged.size() < 16) continue;
      try {
        const auto copy = engine->load(sealed(damaged), "saved");
        decode(*engine, copy, 3);
        engine->close(copy);
      } catch (const Error&) {
      }
    }
  }
}
