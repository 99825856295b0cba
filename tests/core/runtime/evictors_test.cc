// Strategies that evict, in whole runs: what they keep depends on the tokens alone, not on chunks,
// batches or forks; a budget that covers everything is dense; dropping equals masking.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kLayers = 3, kKvHeads = 2, kDecoded = 24;

struct Strategy {
  std::string name;
  std::string selector;  // without its budget
  const char* budget;    // key of the budget
};
const std::vector<Strategy> kStrategies = {
    {"snapkv", "plugin = 'kvasir.snapkv'\n", "budget_tokens"},
    {"snapkv, retrieving", "plugin = 'kvasir.snapkv'\nmode = 'retrieve'\npooling = 'maxpool'\n",
     "budget_tokens"},
    {"pyramidkv", "plugin = 'kvasir.pyramidkv'\nbeta = 5\nkernel_size = 7\n", "budget_tokens"},
    {"h2o", "plugin = 'kvasir.h2o'\nrecent_size = 11\n", "hh_size"},
    {"h2o, masking", "plugin = 'kvasir.h2o'\nmode = 'mask'\nnormalize = true\n", "budget_tokens"},
    {"tova", "plugin = 'kvasir.tova'\n", "budget_tokens"},
    {"tova, once", "plugin = 'kvasir.tova'\nevict_at = 'prompt_end'\n", "budget_tokens"},
};

std::string toml(const Strategy& strategy, uint32_t budget, uint32_t chunk,
                 const std::string& reduce = "sum") {
  return "[cache]\nblock_size = 8\nsink_tokens = 2\nwindow_tokens = 8\non_fault = "
         "'fail'\ngqa_reduce = '" +
         reduce + "'\nchunk_size = " + std::to_string(chunk) + "\n[selector]\n" +
         strategy.selector + strategy.budget + " = " + std::to_string(budget) + "\n" + kRecording;
}
std::string dense_toml() {
  return "[cache]\nblock_size = 8\nchunk_size = 32\n[selector]\nplugin = 'kvasir.dense'\n" +
         kRecording;
}

// What one sequence saw and said while it generated.
struct Trace {
  Logits logits;
  std::vector<std::vector<uint32_t>> attended;  // [step][layer][kv_head], flat
};

void decode_one(Engine& engine, SequenceId seq, TokenId token, Trace& trace) {
  Recording& book = recording_of(engine);
  book.runs.clear();
  book.armed = 1;
  trace.logits.push_back(decode(engine, seq, token));
  book.armed = 0;
  REQUIRE(book.runs.size() == kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    for (uint32_t head = 0; head < kKvHeads; ++head)
      trace.attended.push_back(attended(book.runs[layer], seq, head));
}

Trace generate(Engine& engine, SequenceId seq, uint32_t first = 0) {
  Trace trace;
  for (uint32_t i = 0; i < kDecoded; ++i)
    decode_one(engine, seq, static_cast<TokenId>((first + i) * 7 % 300), trace);
  return trace;
}

void check_equal(const Trace& a, const Trace& b, double tolerance) {
  REQUIRE(a.logits.size() == b.logits.size());
  CHECK(a.attended == b.attended);
  for (size_t i = 0; i < a.logits.size(); ++i)
    CHECK(max_difference(a.logits[i], b.logits[i]) <= tolerance);
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/evictors");

TEST_CASE("a budget that covers everything is dense, bit for bit") {
  for (const Strategy& strategy : kStrategies) {
    CAPTURE(strategy.name);
    Bench bench(8, kKvHeads);
    const auto sparse = bench.engine(toml(strategy, 200, 32)), dense = bench.engine(dense_toml());
    for (const size_t n : {1u, 7u, 70u}) {
      CAPTURE(n);
      const auto a = sparse->open(), b = dense->open();
      const auto prompt = some_tokens(n, 3);
      CHECK(prefill(*sparse, a, prompt) == prefill(*dense, b, prompt));
      const Trace left = generate(*sparse, a), right = generate(*dense, b);
      CHECK(left.logits == right.logits);
      CHECK(left.attended.back() == up_to(static_cast<uint32_t>(n) + kDecoded));
    }
    CHECK(sparse->decode_engagement().fallbacks == 0);
  }
}

TEST_CASE("chunks of the prompt change nothing") {
  for (const Strategy& strategy : kStrategies)
    for (const char* reduce : {"mean", "max"}) {
      CAPTURE(strategy.name);
      CAPTURE(reduce);
      Bench bench(8, kKvHeads);
      std::vector<Trace> traces;
      for (const uint32_t chunk : {128u, 64u, 7u, 1u}) {
        const auto engine = bench.engine(toml(strategy, 12, chunk, reduce));
        const auto seq = engine->open();
        prefill(*engine, seq, some_tokens(70, 4));
        traces.push_back(generate(*engine, seq));
        check_equal(traces[0], traces.back(), 1e-4);
      }
      CHECK(traces[0].attended[0].size() < 40);  // it did evict
    }
}

TEST_CASE("sequences of a batch do not see each other, whatever their lengths") {
  for (const Strategy& strategy : kStrategies) {
    CAPTURE(strategy.name);
    Bench bench(8, kKvHeads);
    EngineOptions options;
    options.max_sequences = 3;
    const auto engine = bench.engine(toml(strategy, 12, 32), options);
    const uint32_t lengths[] = {1, 30, 90};
    std::vector<SequenceId> seqs;
    Logits alone[3];
    for (uint32_t s = 0; s < 3; ++s) {
      const auto prompt = some_tokens(lengths[s], s + 20);
      seqs.push_back(engine->open());
      prefill(*engine, seqs.back(), prompt);
      const auto single = bench.engine(toml(strategy, 12, 32));
      const auto seq = single->open();
      prefill(*single, seq, prompt);
      alone[s] = generate(*single, seq, s).logits;
    }
    for (uint32_t i = 0; i < kDecoded; ++i) {
      std::vector<Engine::DecodeItem> items;
      for (uint32_t s = 0; s < 3; ++s)
        items.push_back({seqs[s], static_cast<TokenId>((s + i) * 7 % 300)});
      std::vector<float> logits(3 * 300);
      engine->decode(items, logits);
      for (uint32_t s = 0; s < 3; ++s)
        CHECK(max_difference(std::span(logits).subspan(s * 300, 300), alone[s][i]) < 1e-4);
    }
  }
}

TEST_CASE("a fork goes on as its parent would have, and then its own way") {
  for (const Strategy& strategy : kStrategies) {
    CAPTURE(strategy.name);
    Bench bench(8, kKvHeads);
    const auto engine = bench.engine(toml(strategy, 12, 32));
    const auto run = [&](uint32_t second) {
      const auto seq = engine->open();
      prefill(*engine, seq, some_tokens(70, 5));
      generate(*engine, seq);
      return generate(*engine, seq, second);
    };
    const auto parent = engine->open();
    prefill(*engine, parent, some_tokens(70, 5));
    generate(*engine, parent);
    const auto child = engine->fork(parent);
    check_equal(generate(*engine, parent, 40), run(40), 0);
    check_equal(generate(*engine, child, 90), run(90), 0);
  }
}

TEST_CASE("H2O: dropping and masking give the same output for the same kept sets") {
  Bench bench(8, kKvHeads);
  std::vector<Trace> traces;
  for (const char* mode : {"drop", "mask"}) {
    const auto engine = bench.engine(toml(
        {"", std::string("plugin = 'kvasir.h2o'\nmode = '") + mode + "'\n", "hh_size"}, 9, 16));
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(70, 6));
    traces.push_back(generate(*engine, seq));
    CHECK(traces.back().attended.back().size() == 2 + 9 + 8 + 1);
  }
  check_equal(traces[0], traces[1], 1e-6);
}

TEST_CASE("what was evicted is gone for the next prompt, what was set aside comes back") {
  for (const Strategy& strategy : kStrategies) {
    CAPTURE(strategy.name);
    Bench bench(8, kKvHeads);
    const auto engine = bench.engine(toml(strategy, 12, 32));
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(70, 7));
    Trace trace;
    decode_one(*engine, seq, 5, trace);
    const auto before = trace.attended[0];
    CHECK(before.size() < 40);
    Recording& book = recording_of(*engine);
    book.runs.clear();
    book.armed = 1;
    prefill(*engine, seq, some_tokens(20, 8));
    book.armed = 0;
    const auto seen = attended(book.runs[0], seq, 0);
    if (strategy.name == "snapkv, retrieving" || strategy.name == "h2o, masking") {
      CHECK(seen == up_to(91));
    } else {
      CHECK(seen.size() <= before.size() + 20);
      for (const uint32_t t : seen)
        CHECK((t >= 71 || std::find(before.begin(), before.end(), t) != before.end()));
    }
    generate(*engine, seq);
  }
}
