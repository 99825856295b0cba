// Plugins that misbehave: the step falls back to dense, is counted and logged, repeated faults put
// the plugin aside, or the run fails by name when the strategy says so.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/error_of.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 4\nwindow_tokens = 8\n";

const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";

std::string bad(const std::string& fault, const std::string& where, const std::string& unit,
                uint32_t from_call = 0) {
  return "[selector]\nplugin = 'kvasir.test.bad_selector'\nfault = '" + fault + "'\nwhere = '" +
         where + "'\nunit = '" + unit + "'\nfrom_call = " + std::to_string(from_call) + "\n";
}
const std::vector<std::string> kFaults = {
    "out_of_range",  "unsorted",        "duplicate",         "too_many",    "nan_weight",
    "inf_weight",    "error",           "error_no_text",     "again",       "capacity_for_ever",
    "lists_missing", "offsets_descend", "unknown_list_flag", "finer_scope", "unknown_status"};

Logits run(Engine& engine, uint32_t steps) {
  const auto seq = engine.open();
  Logits out = {prefill(engine, seq, some_tokens(100, 4))};
  for (uint32_t i = 0; i < steps; ++i)
    out.push_back(decode(engine, seq, static_cast<TokenId>(i * 3)));
  engine.close(seq);
  return out;
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return max_difference(a, b) <= 1e-6 * largest(b);
}
uint32_t lines_with(const Bench& bench, const std::string& piece) {
  uint32_t n = 0;
  for (const std::string& line : bench.log) n += line.find(piece) != std::string::npos;
  return n;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/fault");

TEST_CASE("a fault in select() is one dense step; three put the selector aside") {
  Bench plain(8, 2);
  const auto dense_engine = plain.engine(kCache + kDense);
  const auto dense = run(*dense_engine, 4);
  for (const std::string unit : {"block", "token"})
    for (const std::string& fault : kFaults) {
      if (few_cases() && unit != "token") continue;
      CAPTURE(unit);
      CAPTURE(fault);
      Bench bench(8, 2);
      const auto engine = bench.engine(kCache + bad(fault, "select", unit, 4));
      const auto got = run(*engine, 4);
      CHECK(!same(got[1], dense[1]));  // three honest calls, one layer each
      // Step 1: one honest call, two faults. Step 2: the third fault, then aside.
      CHECK(engine->decode_engagement().fallbacks == 4 * 3 - 4);
      CHECK(lines_with(bench, "kvasir.test.bad_selector") >= 3);
      CHECK(lines_with(bench, "put aside") == 1);
      CHECK(lines_with(bench, "layer 1") >= 1);
      const auto always = bench.engine(kCache + bad(fault, "select", unit));
      const auto faulty = run(*always, 4);
      for (size_t i = 0; i < faulty.size(); ++i) CHECK(same(faulty[i], dense[i]));
      CHECK(always->decode_engagement().fallbacks == 4 * 3);
      CHECK(always->decode_engagement().tokens_attended ==
            always->decode_engagement().tokens_considered);
    }
}

TEST_CASE("asking for dense is counted, but is no fault") {
  Bench bench(8, 2);
  const auto engine = bench.engine(kCache + bad("fallback", "select", "block"));
  const auto dense = bench.engine(kCache + kDense);
  const auto want = run(*dense, 6), got = run(*engine, 6);
  for (size_t i = 0; i < got.size(); ++i) CHECK(same(got[i], want[i]));
  CHECK(engine->decode_engagement().fallbacks == 6 * 3);
  CHECK(probe(*engine->pipeline().selectors[0], 0) == 6 * 3);  // still asked
  CHECK(bench.log.empty());
}

TEST_CASE("on_fault = fail names plugin, function and layer") {
  for (const std::string& fault : kFaults) {
    CAPTURE(fault);
    Bench bench(8, 2);
    const auto engine =
        bench.engine(kCache + "on_fault = 'fail'\n" + bad(fault, "select", "block", 1));
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(100, 4));
    std::string text;
    try {
      decode(*engine, seq, 1);
    } catch (const PluginError& e) {
      text = e.what();
      CHECK(e.plugin() == "kvasir.test.bad_selector");
      CHECK(e.function() == "select");
    }
    CAPTURE(text);
    CHECK(text.find("kvasir.test.bad_selector") != std::string::npos);
    CHECK(text.find("select") != std::string::npos);
    CHECK(text.find("layer 1") != std::string::npos);
    engine->close(seq);
    const auto again = engine->open();  // the engine itself goes on
    prefill(*engine, again, some_tokens(5, 4));
  }
}

TEST_CASE("faults beside select(): the run goes on without that call, then without the plugin") {
  struct Case {
    const char* where;
    const char* fault;
  };
  for (const Case& c : {Case{"observe", "error"},
                        {"observe", "error_no_text"},
                        {"update", "error"},
                        {"evict_plan", "error"},
                        {"evict_plan", "out_of_range"},
                        {"evict_plan", "unsorted"},
                        {"evict_plan", "too_many"},
                        {"evict_plan", "nan_weight"},
                        {"evict_plan", "lists_missing"},
                        {"evict_plan", "offsets_descend"},
                        {"evict_plan", "unknown_list_flag"},
                        {"evict_plan", "finer_scope"},
                        {"evict_plan", "capacity_for_ever"},
                        {"evict_plan", "again"},
                        {"evict_plan", "unknown_status"}}) {
    CAPTURE(std::string(c.where));
    CAPTURE(std::string(c.fault));
    Bench bench(8, 2);
    const auto engine = bench.engine(kCache + bad(c.fault, c.where, "token") + kRecording);
    Logits got;
    CHECK_NOTHROW(got = run(*engine, 6));
    CHECK(lines_with(bench, c.where) >= 3);
    CHECK(lines_with(bench, "put aside") == 1);
    CHECK(probe(*engine->pipeline().selectors[0], 0) == 3);  // aside: not called again
    const auto dense = bench.engine(kCache + kDense);
    if (std::string(c.where) != "observe")  // there the first step was still sparse
      CHECK(same(got.back(), run(*dense, 6).back()));
    const auto strict =
        bench.engine(kCache + "on_fault = 'fail'\n" + bad(c.fault, c.where, "token") + kRecording);
    std::string function;
    try {
      run(*strict, 6);
    } catch (const PluginError& e) {
      function = e.function();
    }
    CHECK(function == c.where);
  }
}

TEST_CASE("what a backend writes is checked") {
  for (const std::string fault : {"nan", "inf", "nan_lse", "untouched"}) {
    CAPTURE(fault);
    Bench bench(8, 2);
    const auto engine = bench.engine(
        kCache + kDense + "[attention]\nplugin = 'kvasir.test.bad_attention'\nfault = '" + fault +
        "'\nfrom_call = 4\n");
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(30));  // three honest runs, and one more
    std::string text;
    try {
      decode(*engine, seq, 1);
    } catch (const PluginError& e) {
      text = e.what();
      CHECK(e.plugin() == "kvasir.test.bad_attention");
      CHECK(e.function() == "run");
    }
    CAPTURE(text);
    CHECK(text.find("layer 1") != std::string::npos);
    engine->close(seq);
  }
}

TEST_CASE("a backend or storage that fails is an error by name, and holds nothing once closed") {
  Bench bench(8, 2);
  const auto fails = [&](const std::string& toml, const std::string& piece) {
    const auto engine = bench.engine(kCache + kDense + toml);
    const auto seq = engine->open();
    std::string text;
    try {
      prefill(*engine, seq, some_tokens(30));
      for (int i = 0; i < 10; ++i) decode(*engine, seq, 1);
    } catch (const Error& e) {
      text = e.what();
    }
    CAPTURE(toml);
    CAPTURE(text);
    CHECK(text.find(piece) != std::string::npos);
    engine->close(seq);
    // A lease without memory is itself the storage's broken book-keeping.
    if (toml.find("storage") == std::string::npos || toml.find("null_keys") != std::string::npos)
      return;
    CHECK(probe(*engine->pipeline().storage, 0) == 0);
    CHECK(probe(*engine->pipeline().storage, 1) == 0);
  };
  fails("[attention]\nplugin = 'kvasir.test.bad_attention'\nfault = 'error'\nfrom_call = 4\n",
        "kvasir.test.bad_attention");
  for (const std::string fault :
       {"acquire_error", "acquire_again", "full", "null_keys", "wrong_format", "seal_error"})
    fails("[storage]\nplugin = 'kvasir.test.bad_storage'\nfault = '" + fault + "'\nfrom_call = 4\n",
          "kvasir.test.bad_storage");
}

TEST_CASE("closing when the storage refuses to drop is logged, not thrown") {
  Bench bench(8, 2);
  const auto engine = bench.engine(
      kCache + kDense + "[storage]\nplugin = 'kvasir.test.bad_storage'\nfault = 'drop_error'\n");
  const auto seq = engine->open();
  prefill(*engine, seq, some_tokens(30));
  CHECK_NOTHROW(engine->close(seq));
  CHECK(lines_with(bench, "kvasir.test.bad_storage") > 0);
}
