// Sequences over kvasir.kivi: exact until a block is full, the same numbers after a fork, a cut, a
// save, and beside a window in f16.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache = "[cache]\nblock_size = 32\nsink_tokens = 4\nwindow_tokens = 40\n";
const std::string kDense = "[selector]\nplugin = 'dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'block_topk'\nbudget_tokens = 64\n[representative]\nplugin = 'minmax'\n";
const std::string kH2o = "[selector]\nplugin = 'h2o'\nbudget_tokens = 60\n";  // tokens move
const std::string kInfiniGen = "[selector]\nplugin = 'infinigen'\nbudget_tokens = 12\n";

std::string kivi(uint32_t k_bits = 2, uint32_t v_bits = 2) {
  return "[storage]\nplugin = 'kivi'\nk_bits = " + std::to_string(k_bits) +
         "\nv_bits = " + std::to_string(v_bits) + "\n";
}
const std::string kF16 = "[storage]\nplugin = 'dram'\ntype_k = 'f16'\ntype_v = 'f16'\n";

struct Engines {
  Bench bench{8, 2, 32};
  EngineOptions options;
  Engines() {
    options.max_sequences = 3;
    options.max_context = 512;
  }
  std::unique_ptr<Engine> make(const std::string& toml) {
    return bench.engine(kCache + toml, options);
  }
};

Logits decoded(Engine& engine, SequenceId seq, TokenId first, int n) {
  Logits out;
  for (int i = 0; i < n; ++i) out.push_back(decode(engine, seq, first + static_cast<TokenId>(i)));
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/kivi");

TEST_CASE("exact while no block is full, then near f16, the nearer the more bits") {
  Engines engines;
  const auto exact = engines.make(kDense + kF16);
  const auto start = exact->open();
  std::vector<double> off;
  const std::vector<float> first = prefill(*exact, start, some_tokens(31, 1));
  const std::vector<float> later = prefill(*exact, start, some_tokens(200, 2));
  for (const auto& [k_bits, v_bits] : {std::pair{2u, 2u}, {2u, 4u}, {4u, 4u}}) {
    const auto engine = engines.make(kDense + kivi(k_bits, v_bits));
    const auto seq = engine->open();
    CHECK(prefill(*engine, seq, some_tokens(31, 1)) == first);
    off.push_back(max_difference(prefill(*engine, seq, some_tokens(200, 2)), later));
    CHECK(off.back() > 0);
  }
  CHECK(off[2] < off[1]);
  CHECK(off[1] < off[0]);
  CHECK(off[2] < 0.2 * largest(later));
}

TEST_CASE("the double oracle attends to the same rows") {
  for (const std::string& strategy : {kDense, kTopK, kH2o, kInfiniGen}) {
    CAPTURE(strategy);
    Engines engines;
    const auto fast = engines.make(strategy + kivi()),
               oracle = engines.make(strategy + kivi() + "[attention]\nplugin = 'reference'\n");
    const auto a = fast->open(), b = oracle->open();
    CHECK(max_difference(prefill(*fast, a, some_tokens(150, 3)),
                         prefill(*oracle, b, some_tokens(150, 3))) < 1e-4);
    for (TokenId token = 0; token < 12; ++token)
      CHECK(max_difference(decode(*fast, a, token), decode(*oracle, b, token)) < 1e-4);
  }
}

TEST_CASE("a saved sequence goes on with the same numbers, and a fork with its parent's") {
  for (const std::string& strategy : {kDense, kTopK, kH2o, kInfiniGen}) {
    CAPTURE(strategy);
    Engines engines;
    const auto first = engines.make(strategy + kivi()), second = engines.make(strategy + kivi());
    const auto seq = first->open();
    prefill(*first, seq, some_tokens(150, 4));
    decoded(*first, seq, 5, 7);
    const auto bytes = first->save(seq);
    const auto copy = second->load(bytes, "saved");
    const auto fork = first->fork(seq);
    const Logits want = decoded(*first, seq, 30, 40);  // past the end of a block
    CHECK(decoded(*second, copy, 30, 40) == want);
    CHECK(second->save(copy) == first->save(seq));
    CHECK(decoded(*first, fork, 30, 40) == want);
    CHECK(second->save(copy) == first->save(fork));
  }
}

TEST_CASE("a cut at the end of a block leaves what was there") {
  Engines engines;
  const auto engine = engines.make(kDense + kivi());
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(160, 5));  // five blocks
  const Logits want = decoded(*engine, seq, 9, 50);
  for (int round = 0; round < 2; ++round) {
    engine->truncate(seq, 160);
    CHECK(decoded(*engine, seq, 9, 50) == want);
  }
  engine->truncate(seq, 170);  // within one: what the block had is read back, then quantised again
  for (const std::vector<float>& logits : decoded(*engine, seq, 9, 50))
    for (const float x : logits) CHECK(std::isfinite(x));
}

TEST_CASE("a window of its own keeps recent tokens in f16") {
  Engines engines;
  const std::string attention =
      "[[attention]]\nholds = 'window'\nplugin = 'cpu'\n"
      "[[attention]]\nholds = 'context'\nplugin = 'cpu'\n";
  const auto with = [&](const std::string& context) {
    return engines.make(kDense + "[[storage]]\nholds = 'window'\nplugin = 'dram'\n" +
                        "[[storage]]\nholds = 'context'\n" + context + attention);
  };
  const auto exact = with("plugin = 'dram'\n"),
             quantised = with("plugin = 'kivi'\nk_bits = 2\nv_bits = 2\n");
  const auto a = exact->open(), b = quantised->open();
  // The window is rounded up to whole blocks: 64 tokens and the sink stay.
  CHECK(prefill(*quantised, b, some_tokens(40, 6)) == prefill(*exact, a, some_tokens(40, 6)));
  CHECK(decoded(*quantised, b, 1, 20) == decoded(*exact, a, 1, 20));
  CHECK(decoded(*quantised, b, 1, 150) != decoded(*exact, a, 1, 150));
}

TEST_SUITE_END();
