// kvasir bench model as a program uses it: the shape of what it prints, and bytes that are exact.
// Nothing here depends on how fast the machine is.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using kvasir::test::TinyModel;
using Json = nlohmann::json;

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Bench : TinyModel {
  // Sink, window and budget are 16 + 32 + 64 tokens.
  std::string narrow = folder.write("narrow.toml",
                                    "[cache]\nblock_size = 16\nsink_tokens = 16\n"
                                    "window_tokens = 32\n"
                                    "[selector]\nplugin = \"block_topk\"\nbudget_tokens = 64\n"
                                    "[representative]\nplugin = \"minmax\"\n");
  Json shape = json_of({"model", "info", "-m", path, "--json"});

  std::vector<std::string> command(const std::vector<std::string>& more) const {
    return joined({"bench", "model", "-m", path, "-r", "2", "-n", "4"}, more);
  }
};

TEST_CASE("bench model: rows of every strategy, test and depth, in the order asked for") {
  const Bench b;
  const Json r = json_of(
      b.command({"-p", "20", "-d", "0", "-d", "300", "-s", "dense", "-s", b.narrow, "-o", "json"}));
  CHECK(r["repetitions"] == 2);
  CHECK(r["context_is_made_up"] == true);
  CHECK(r["limits"]["read_bytes_per_second"] > 1e6);
  CHECK(r["limits"]["samples"] == 16);  // one beside each repetition of each row
  REQUIRE(r["rows"].size() == 8);
  const std::vector<std::string> tests{"pp20", "tg4", "pp20 @ d300", "tg4 @ d300"};
  for (size_t i = 0; i < 8; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    CHECK(row["test"] == tests[i % 4]);
    CHECK(row["strategy"] == (i < 4 ? "dense" : "narrow"));
    CHECK(row["type_k"] == "f16");
    CHECK(row["n_depth"] == (i % 4 < 2 ? 0 : 300));
    CHECK(row["samples_ts"].size() == 2);
    CHECK(row["median_ts"] > 0.0);
    CHECK(row["fallbacks"] == 0);
    const bool prompt = i % 2 == 0;
    CHECK(row["n_prompt"] == (prompt ? 20 : 0));
    CHECK(row["bytes_per_token"].is_null() == prompt);
    CHECK(row["of_read_bandwidth"].is_null() == prompt);
    CHECK(row["flop_per_second"].is_null() == !prompt);
  }
}

TEST_CASE("bench model: bytes of K and V are those of the tokens attended, to the byte") {
  const Bench b;
  const Json& s = b.shape;
  const uint64_t heads = uint64_t{s["n_layers"]} * s["n_kv_heads"].get<uint64_t>();
  const uint64_t dim = s["head_dim"];
  const Json r = json_of(b.command({"-d", "300", "-p", "0", "-s", "dense", "-s", b.narrow, "--ctk",
                                    "f32,f16", "--ctv", "f16", "-o", "json"}));
  REQUIRE(r["rows"].size() == 4);  // [types][strategies]
  for (size_t i = 0; i < 4; ++i) {
    const Json& row = r["rows"][i];
    CAPTURE(row.dump());
    const uint64_t token_bytes = dim * ((i < 2 ? 4 : 2) + 2);
    CHECK(row["type_k"] == (i < 2 ? "f32" : "f16"));
    CHECK(row["kv_bytes"] == row["tokens_attended"].get<uint64_t>() * token_bytes);
    CHECK(row["tokens_considered"] == heads * (301 + 302 + 303 + 304));
    if (i % 2 == 0) {
      CHECK(row["tokens_attended"] == row["tokens_considered"]);
      CHECK(row["bytes_to_choose"] == 0);
    } else {
      // The budget whole, the sink, and a window that begins at a block: the depth was stored,
      // summarised and chosen from as a prompt is.
      CHECK(row["tokens_attended"] < heads * 4 * (16 + 64 + 32 + 2 * 16));
      CHECK(row["tokens_attended"] > heads * 4 * (16 + 64 + 32 - 1));
      CHECK(row["bytes_to_choose"] > 0);
    }
    const double per_token = row["weight_bytes_per_token"].get<double>() +
                             static_cast<double>(row["kv_bytes"].get<uint64_t>() +
                                                 row["bytes_to_choose"].get<uint64_t>()) /
                                 4;
    CHECK(row["bytes_per_token"].get<double>() == doctest::Approx(per_token));
    CHECK(row["bytes_per_second"].get<double>() ==
          doctest::Approx(per_token * row["median_ts"].get<double>()));
    CHECK(row["of_read_bandwidth"].get<double>() ==
          doctest::Approx(row["bytes_per_second"].get<double>() /
                          r["limits"]["read_bytes_per_second"].get<double>()));
  }
}

TEST_CASE("bench model: every preset decodes behind a made-up context") {
  const Bench b;
  std::vector<std::string> command = b.command({"-d", "200", "-p", "0", "-o", "json"});
  const std::vector<std::string> presets{"dense",        "block_topk",    "quest",    "infllm",
                                         "snapkv",       "pyramidkv",     "h2o",      "tova",
                                         "streaming",    "ktransformers", "twilight", "magicpig",
                                         "duoattention", "oracle",        "random"};
  for (const std::string& preset : presets) command = joined(command, {"-s", preset});
  const Json r = json_of(command);
  REQUIRE(r["rows"].size() == presets.size());
  for (size_t i = 0; i < presets.size(); ++i) {
    CAPTURE(r["rows"][i].dump());
    CHECK(r["rows"][i]["tokens_attended"] > 0);
    CHECK(r["rows"][i]["fallbacks"] == 0);
  }
}

TEST_CASE("bench model: what moved between the tiers of a storage, in each format") {
  const Bench b;
  const std::vector<std::string> tiered = {"-d",    "400",
                                           "-p",    "0",
                                           "--set", "storage.plugin=tiered",
                                           "--set", "storage.cached_blocks=1",
                                           "--set", "cache.block_size=16"};
  const Json r = json_of(b.command(joined(tiered, {"-o", "json"})));
  const Json& tiers = r["rows"][0]["tiers"];
  REQUIRE(tiers.size() == 2);
  CHECK(tiers[1]["tier"] == "file");
  CHECK(tiers[1]["bytes_read"] > 0);
  CHECK(tiers[1]["waited_ms"] > 0.0);
  CHECK(!json_of(b.command({"-p", "0", "-o", "json"}))["rows"][0].contains("tiers"));
  const Finished text = run_kvasir(b.command(tiered));
  CHECK(has(text.out, "\ntg4 @ d400, dense:\ntiers: memory "));
  CHECK(has(text.out, "reading: file: "));
  const Finished csv = run_kvasir(b.command(joined(tiered, {"-o", "csv"})));
  CHECK(csv.code == 0);
  CHECK(std::count(csv.out.begin(), csv.out.end(), '\n') == 2);
}

TEST_CASE("bench model: table, CSV and breakdown") {
  const Bench b;
  const Finished table = run_kvasir(b.command({"-p", "20", "-d", "64", "--breakdown"}));
  CHECK(table.code == 0);
  for (const char* part :
       {"| test ", "tg4 @ d64", "made up from the seed, no prompt was computed", "t/s", "of read",
        "projections", "selection", "attention", "FFN", "logits", "other"}) {
    CAPTURE(part);
    CHECK(has(table.out, part));
  }
  const Finished csv = run_kvasir(b.command({"-p", "20", "-o", "csv"}));
  CHECK(csv.code == 0);
  CHECK(std::count(csv.out.begin(), csv.out.end(), '\n') == 3);
  CHECK(has(csv.out, ",limits_read_bytes_per_second,"));
  CHECK(has(csv.out, ",\"tg4\",0,4,0,\"dense\",\"f16\",\"f16\","));
  const Finished help = run_kvasir({"bench", "model", "--help"});
  for (const char* column : {"t/s", "+/-", "ms/token", "MB/token", "GB/s", "of read", "GFLOP/s",
                             "of f32", "attended", "fallbacks"}) {
    CAPTURE(column);
    CHECK(has(help.out, std::string("\n  ") + column + " "));
  }
}

TEST_CASE("bench model: --preset measures a model that is there for the time of the command") {
  kvasir::test::TempDir folder;
  const Json r = json_of({"bench", "model", "--preset", "tiny-llama-test", "-p", "0", "-n", "2",
                          "-r", "1", "-o", "json"},
                         {"TMPDIR=" + folder.path(".")});
  CHECK(r["model"] == "tiny-llama-test");
  CHECK(r["rows"][0]["test"] == "tg2");
  const Finished left = kvasir::test::run_shell("ls -A '" + folder.path(".") + "'");
  CHECK(!has(left.out, "kvasir-bench"));
}

TEST_CASE("bench model: mistakes are named") {
  const Bench b;
  const auto refused = [&](const std::vector<std::string>& command) {
    const Finished done = run_kvasir(command);
    CHECK(done.code == 2);
    CHECK(done.out.empty());
    return done.err;
  };
  CHECK(has(refused({"bench", "model"}), "give -m FILE.gguf or --preset NAME"));
  CHECK(has(refused(b.command({"--preset", "tiny-llama-test"})), "give one of them"));
  CHECK(has(refused(b.command({"-s", "qest"})), "did you mean the preset \"quest\"?"));
  CHECK(has(refused({"bench", "model", "-m", b.path, "-p", "0", "-n", "0"}), "nothing to measure"));
  CHECK(has(refused({"bench", "model", "-m", b.path, "-r", "0"}), "-r must be above 0"));
  CHECK(has(refused(b.command({"-d", "1,x"})), "-d x: expected a number"));
  // Of what is measured, not of the dense control, which reads a short sample.
  CHECK(has(refused(b.command({"-d", "2000000000", "-s", "dense"})),
            "the contexts of all depths and strategies need"));
}

}  // namespace
