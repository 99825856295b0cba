// kvasir bench select as a program uses it.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using kvasir::test::TinyModel;
using Json = nlohmann::json;

struct Bench : TinyModel {
  std::string text = folder.write("text", numbered_lines());
  // Sink, window and budget hold all of 100 tokens, and of 800 they do not.
  std::string narrow = folder.write("narrow.toml",
                                    "[cache]\nblock_size = 16\nsink_tokens = 16\n"
                                    "window_tokens = 32\ndense_below_tokens = 4000\n"
                                    "[selector]\nplugin = \"block_topk\"\nbudget_tokens = 128\n"
                                    "[representative]\nplugin = \"minmax\"\n");

  static std::string numbered_lines() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text.append("line ").append(std::to_string(i * 7919 % 1000)).append("\n");
    return text;
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> out{"bench", "select", "-m", path, "-f", text};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
};

TEST_CASE("bench select: a row per strategy and depth, whose parts and floors fit together") {
  const Bench b;
  const Json r = json_of(b.command({"-d", "800,100", "-n", "6", "-s", b.narrow, "-s", "h2o",
                                    "--set", "cache.block_size=16", "--json"}));
  CHECK(r["decode_steps"] == 6);
  CHECK(r["dense_below_tokens"] == 0);
  CHECK(r["read_bytes_per_second"] > 1e7);
  CHECK(r["multiply_adds_per_second"] > 1e7);
  REQUIRE(r["rows"].size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    CHECK(row["prompt_tokens"] == (i < 3 ? 100 : 800));  // ascending, whatever was typed
    CHECK(row["step_ms"] > 0.0);
    CHECK(row["attend_ms"] > 0.0);
    CHECK(row["model_ms"] > 0.0);
    CHECK(row["other_ms"] >= 0.0);
    CHECK(row["step_spread"] >= 0.0);
    CHECK(row["steps_faster"] <= (row["strategy"] == "dense" ? 0 : 6));
    CHECK(row["fallbacks"] == 0);
    const double dense = r["rows"][i / 3 * 3]["step_ms"];
    CHECK(row["of_dense"].get<double>() == doctest::Approx(row["step_ms"].get<double>() / dense));
    CHECK(row["attend_floor_bytes_ms"].get<double>() ==
          doctest::Approx(1e3 * row["kv_bytes_per_step"].get<double>() /
                          r["read_bytes_per_second"].get<double>())
              .epsilon(0.01));
    CHECK(row["attend_over_floor"].get<double>() ==
          doctest::Approx(row["attend_ms"].get<double>() /
                          row["attend_floor_bytes_ms"].get<double>()));
  }
  CHECK(r["rows"][0]["strategy"] == "dense");
  CHECK(r["rows"][3]["strategy"] == "dense");
  for (const size_t dense : {0, 3}) {
    CHECK(r["rows"][dense]["attends_everything"] == true);
    CHECK(r["rows"][dense]["choose_floor_bytes_ms"] == 0.0);
    CHECK(r["rows"][dense]["choose_over_floor"].is_null());
  }
  CHECK(r["rows"][1]["attends_everything"] == true);  // the budget covers 100 tokens
  const Json& narrow = r["rows"][4];
  CHECK(narrow["strategy"] == "narrow");
  // Its file says dense below 4000; the bench measures the strategy all the same.
  CHECK(narrow["attended_percent"] < 30.0);
  CHECK(narrow["choose_ms"] > 0.0);
  CHECK(narrow["choose_floor_arithmetic_ms"] > 0.0);
  CHECK(narrow["bytes_to_choose_per_step"] > 0);
  CHECK(narrow["choose_over_floor"].get<double>() ==
        doctest::Approx(narrow["choose_ms"].get<double>() /
                        std::max(narrow["choose_floor_bytes_ms"].get<double>(),
                                 narrow["choose_floor_arithmetic_ms"].get<double>())));
  REQUIRE(r["proposals"].size() == 2);
  CHECK(r["proposals"][0]["strategy"] == "narrow");
  CHECK(r["proposals"][0]["never_chooses"] == false);
  const Json& below = r["proposals"][0]["dense_below_tokens"];
  CHECK(below == (narrow["of_dense"] < 1.0 ? Json(800) : Json()));
  CHECK(r["proposals"][0]["steps_faster"] == (below.is_null() ? Json() : narrow["steps_faster"]));
}

TEST_CASE("bench select: the table, what stands on stderr, and a strategy that never chooses") {
  const Bench b;
  const Finished done =
      run_kvasir(b.command({"-d", "64,128", "-n", "2", "-s", b.narrow, "-s", "dense"}));
  REQUIRE(done.code == 0);
  for (const char* part :
       {"2 decode steps behind each prompt", "dense_below_tokens = 0 in all", "ms/step", "spread",
        "of dense", "faster", "choosing", "attention", "layers", "other", "attended", "fallbacks",
        "choosing: bytes", "arithmetic", "x floor", "attention: bytes",
        "Attended everything, so there was nothing to gain: narrow at 64, dense at 64, narrow at "
        "128, dense at 128.",
        "--set cache.dense_below_tokens=N", "attends to everything at every depth"}) {
    CAPTURE(part);
    CHECK(done.out.find(part) != std::string::npos);
  }
  CHECK(done.err.find("kvasir: 128 tokens: narrow: ") != std::string::npos);
  CHECK(done.err.find("attended 100.0 %  (6 of 6)") != std::string::npos);
}

TEST_CASE("bench select: strategies that read the prompt each in its own way take turns, too") {
  const Bench b;
  const std::string alone =
      b.folder.write("alone.toml",
                     "[cache]\nblock_size = 32\nsink_tokens = 16\nwindow_tokens = 64\n"
                     "[selector]\nplugin = \"streaming\"\nprefill_select_tokens = 64\n");
  const Json r =
      json_of(b.command({"-d", "200,300", "-n", "3", "-s", b.narrow, "-s", alone, "--json"}));
  REQUIRE(r["rows"].size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    CHECK(row["strategy"] == std::vector<std::string>{"dense", "narrow", "alone"}[i % 3]);
    CHECK(row["attends_everything"] == (i % 3 == 0));
    const uint64_t depth = row["prompt_tokens"];  // each step has its counters, and no other's
    const uint64_t dense_tokens = r["rows"][i / 3 * 3]["tokens_considered"];
    CHECK(row["tokens_considered"] == dense_tokens);
    CHECK(dense_tokens % (3 * depth + 6) == 0);  // steps see depth + 1, + 2 and + 3 tokens
  }
}

TEST_CASE("bench select: --help says what each column is") {
  const Finished help = run_kvasir({"bench", "select", "--help"});
  CHECK(help.code == 0);
  for (const char* column : {"ms/step", "spread", "of dense", "faster", "choosing", "attention",
                             "layers", "other", "attended", "fallbacks", "choosing: bytes",
                             "choosing: arithmetic", "x floor", "attention: bytes"}) {
    CAPTURE(column);
    CHECK(help.out.find(std::string("\n  ") + column + " ") != std::string::npos);
  }
}

TEST_CASE("bench select: mistakes are named") {
  const Bench b;
  const auto refused = [&](const std::vector<std::string>& more) {
    const Finished done = run_kvasir(b.command(more));
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    return done.err;
  };
  const auto says = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != text.npos);
  };
  const Json text = json_of({"tokenize", "-m", b.path, "-f", b.text, "--json"});
  says(refused({"-s", "quest", "-d", "64,100K"}),
       "text has " + text["n_tokens"].dump() + " tokens, but -d asks for 102400");
  says(refused({"-s", "quest", "-d", "0,64"}), "-d 0,64: must be above 0");
  says(refused({"-s", "quest", "-d", "64,1K,1024"}), "-d 64,1K,1024: 1024 stands there twice");
  says(refused({"-s", "quest", "-d", "64,many"}), "-d many");
  says(refused({"-s", "qest", "-d", "64"}), "did you mean the preset \"quest\"?");
  says(refused({"-d", "64"}), "give at least one -s STRATEGY");
  says(refused({"-s", "quest", "-d", "64", "-n", "0"}), "-n must be above 0");
  says(refused({"-s", "quest", "-d", "64", "-n", "8", "-c", "64"}), "-d and -n are 72 tokens");
  says(refused({"-s", "quest", "-d", "64", "--set", "cache.dense_below_tokens=64"}),
       "leave it out");
  const Finished no_text = run_kvasir({"bench", "select", "-m", b.path, "-s", "quest"});
  CHECK(no_text.code == 2);
  says(no_text.err, "give a text with -f FILE");
}

}  // namespace
