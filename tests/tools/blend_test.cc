// Prompts of chunks from the command line: answers, reports, refusals.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/process.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::run_kvasir;
using kvasir::test::run_shell;
using kvasir::test::TempDir;
using Json = nlohmann::json;

const std::string kModel = std::string(KVASIR_SOURCE_DIR) + "/models/kvasir-retrieval-3m-f16.gguf";

const std::string kConfigs = std::string(KVASIR_SOURCE_DIR) + "/configs/blend/";

struct Chunks {
  TempDir dir;
  std::string a = write("a.txt", "The quiet baker carried a lamp to the harbor before dawn. ");
  std::string b = write("b.txt", "The pass key is 73914. Remember it. The old sailor slept.");
  std::string empty = write("empty.txt", "");
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(dir.path(name)) << text;
    return dir.path(name);
  }
  std::vector<std::string> run(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {
        "run",       "-m", kModel, "--chunks",
        a,           b,    "-p",   "\nWhat is the pass key? The pass key is",
        "--temp",    "0",  "-n",   "6",
        "--compute", "f32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

Json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Finished done = run_kvasir(arguments);
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  return Json::parse(done.out);
}

}  // namespace

TEST_SUITE_BEGIN("tools/blend");

TEST_CASE("run --chunks computes all, none or a share of the chunks' tokens, and says so") {
  const Chunks chunks;
  const Json full = json_of(chunks.run({"--blend", "full"}));
  const Json all = json_of(chunks.run({"--blend", "1"}));
  CHECK(all["tokens"] == full["tokens"]);
  const auto n = full["blend"]["chunk_tokens"].get<uint32_t>();
  CHECK(n > 10);
  CHECK(full["blend"]["mode"] == "full");
  CHECK(full["blend"]["recomputed_share"] == 1.0);
  CHECK(all["blend"]["recomputed_per_layer"].size() ==
        full["blend"]["recomputed_per_layer"].size());
  const Json reuse = json_of(chunks.run({"--blend", "reuse"}));
  CHECK(reuse["blend"]["recomputed_share"] == 0.0);
  const Json some = json_of(chunks.run({"--set", "blend.ratio=0.2"}));
  CHECK(some["blend"]["mode"] == "ratio");
  CHECK(some["blend"]["ratio"] == 0.2);
  const auto per_layer = some["blend"]["recomputed_per_layer"].get<std::vector<uint32_t>>();
  CHECK(per_layer.front() > per_layer.back());
  CHECK(per_layer.back() > 0);
  CHECK(some["blend"]["ttft_ms"].get<double>() > 0);
  const Finished text = run_kvasir(chunks.run({"--blend", "auto"}));
  CHECK(has(text.err, "blend: full, " + std::to_string(n) + " tokens of chunks"));
  CHECK(has(text.err, "fewer than min_tokens = 256"));
}

TEST_CASE("a file of configs/blend is the way of reading that --blend calls by a name") {
  const Chunks chunks;
  const std::vector<std::pair<std::string, std::string>> arms = {
      {"full", "full"},
      {"prefix", "prefix"},
      {"reuse", "reuse"},
      {"reuse_uncorrected", "reuse_uncorrected"},
      {"ratio_15", "0.15"},
      {"random_15", "random:0.15"},
      {"oracle_15", "oracle:0.15"},
      {"auto", "auto"}};
  size_t n_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(kConfigs))
    n_files += file.path().extension() == ".toml";
  CHECK(n_files == arms.size());
  for (const auto& [file, arm] : arms) {
    CAPTURE(file);
    const Json by_file = json_of(chunks.run({"-s", kConfigs + file + ".toml"}));
    const Json by_name = json_of(chunks.run({"--blend", arm}));
    for (const char* key : {"mode", "ratio", "recomputed_per_layer"})
      CHECK(by_file["blend"][key] == by_name["blend"][key]);
    CHECK(by_file["tokens"] == by_name["tokens"]);
  }
}

TEST_CASE("bench blend times loading from a store and from the process, ahead and when needed") {
  const TempDir dir;
  const auto bench = [&](const std::string& storage, const std::string& store) {
    std::vector<std::string> all = {"bench",
                                    "blend",
                                    "-m",
                                    kModel,
                                    "--compute",
                                    "f32",
                                    "--n-chunks",
                                    "3",
                                    "--chunk-tokens",
                                    "40",
                                    "--question-tokens",
                                    "2",
                                    "--blend",
                                    "reuse",
                                    "--loads",
                                    "2",
                                    "--set",
                                    "storage.plugin=" + storage,
                                    "--set",
                                    "cache.block_size=16"};
    if (!store.empty()) all.insert(all.end(), {"--set", "storage.store=" + store});
    return json_of(all)["loading"];
  };
  const Json memory = bench("dram", "");
  REQUIRE(memory.size() == 2);
  CHECK(memory[0]["tier"] == "memory");
  const Json stored = bench("tiered", dir.path("store"));
  REQUIRE(stored.size() == 4);
  for (const size_t i : {0, 1, 2, 3}) {
    CHECK(stored[i]["ahead"] == (i % 2 == 0));
    CHECK(stored[i]["load_layer_ms"].get<double>() > 0);
    if (i % 2 == 1) CHECK(stored[i]["overlap_share"] == 0.0);
  }
  CHECK(stored[0]["tier"] == "store");
  CHECK(stored[2]["tier"] != "store");
}

TEST_CASE("bench blend does not wait for chunks that a store keeps in parts only") {
  const TempDir dir;
  const Finished done =
      run_kvasir({"bench", "blend", "-m", kModel, "--compute", "bf16", "--n-chunks", "2",
                  "--chunk-tokens", "40", "--blend", "reuse", "--loads", "1", "--set",
                  "storage.plugin=tiered", "--set", "storage.store=" + dir.path("store")});
  CHECK(done.code == 2);
  if (has(done.err, "has no bf16 matrix products")) {
    MESSAGE("SKIPPED: this processor has no bf16");
    return;
  }
  CHECK(has(done.err, "no whole chunk of 40"));
  CHECK(has(done.err, "add --deterministic"));
}

TEST_CASE("what cannot be is refused in a line") {
  const Chunks chunks;
  const auto refusal = [&](const std::vector<std::string>& arguments) {
    const Finished done = run_kvasir(arguments);
    CHECK(done.code == 2);
    return done.err;
  };
  CHECK(has(refusal(chunks.run({"--blend", "reuze"})), "did you mean 'reuse'?"));
  CHECK(has(refusal(chunks.run({"--blend", "1.5"})), "--blend 1.5: expected"));
  CHECK(has(refusal(chunks.run({"--blend", "full:0.5"})), "a share from 0 to 1 stands behind"));
  CHECK(has(refusal(chunks.run({"--set", "blend.ratios=0.2"})), "did you mean \"ratio\"?"));
  CHECK(has(refusal(chunks.run({"--set", "blend.ratio=2"})), "out of range 0..1"));
  CHECK(has(refusal(chunks.run({"--set", "blend.check_layer=99"})), "check_layer = 99"));
  CHECK(has(refusal(chunks.run({"-s", "snapkv"})), "chunks cannot be reused"));
  CHECK(has(refusal(chunks.run({"--prompt-cache", "x.kv"})), "--chunks does not go with"));
  CHECK(has(refusal({"run", "-m", kModel, "-p", "a", "--blend", "full"}), "give --chunks"));
  CHECK(has(refusal({"run", "-m", kModel, "-p", "a", "--chunks", chunks.empty}), "is empty"));
  CHECK(has(refusal({"task", "blend", "-m", kModel, "--task", "needle"}), "has no chunks"));
  CHECK(has(refusal({"task", "blend", "-m", kModel, "--length", "2K", "-c", "100"}), "-c 100:"));
  CHECK(has(refusal({"bench", "blend", "-m", kModel, "-c", "100"}), "-c 100:"));
}

TEST_CASE("cache add reads a text once, and commands with chunks find it") {
  const Chunks chunks;
  std::string story;
  for (int i = 0; i < 40; ++i) story += "The sailor counted " + std::to_string(i) + " lamps. ";
  const std::string c = chunks.write("c.txt", story), store = chunks.dir.path("store");
  const std::vector<std::string> same = {"--compute", "f32", "--set", "cache.block_size=16"};
  const auto add = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"cache", "add", c, chunks.a, "-m", kModel, "--store", store};
    all.insert(all.end(), same.begin(), same.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Json first = json_of(add({}))["chunks"], second = json_of(add({}))["chunks"];
  REQUIRE(first.size() == 2);
  CHECK(first[0]["file"] == c);
  const auto stored = first[0]["stored_tokens"].get<uint32_t>();
  CHECK(first[0]["found_tokens"] == 0);
  CHECK(stored > 100);
  CHECK(stored == first[0]["tokens"].get<uint32_t>() + 1);  // behind the BOS, to the last token
  CHECK(second[0]["found_tokens"] == stored);
  CHECK(second[1]["stored_tokens"] == first[1]["stored_tokens"]);
  CHECK(has(run_kvasir(add({})).out, "found"));
  // What run --chunks reads of them is the same as what it computes.
  auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"run",    "-m", kModel, "--chunks", chunks.a,  c,    "-p", "So",
                                    "--temp", "0",  "-n",   "4",        "--blend", "0.2"};
    all.insert(all.end(), same.begin(), same.end());
    all.insert(all.end(), more.begin(), more.end());
    return json_of(all);
  };
  const Json computed = run({});
  const Json found = run({"--set", "storage.plugin=tiered", "--set", "storage.store=" + store});
  CHECK(found["tokens"] == computed["tokens"]);
  CHECK(found["prefill"]["tiers"][2]["bytes_read"].get<uint64_t>() > 0);
  const Finished nowhere = run_kvasir({"cache", "add", c, "-m", kModel});
  CHECK(nowhere.code == 2);
  CHECK(has(nowhere.err, "--store"));
  CHECK(run_kvasir({"cache", "add", chunks.empty, "-m", kModel, "--store", store}).code == 2);
}

TEST_CASE("chat --chunks talks about chunks that were read alone, also after /reset") {
  const Chunks chunks;
  const std::string ask = "What is the pass key? The pass key is\n";
  const auto chat = [&](const std::string& flags) {
    return run_shell("printf '" + ask + "/reset\n" + ask + "' | kvasir chat -m " + kModel +
                     " --chunks " + chunks.a + " " + chunks.b +
                     " --temp 0 -n 6 --compute f32 -c 512 " + flags);
  };
  const Finished full = chat("--blend full"), all = chat("--blend 1"), some = chat("");
  CAPTURE(some.err);
  REQUIRE(full.code == 0);
  REQUIRE(some.code == 0);
  CHECK(!full.out.empty());
  CHECK(all.out == full.out);
  CHECK(has(all.err, "blend: ratio 1"));
  CHECK(has(some.err, "blend: ratio 0.15"));
  const size_t half = all.out.size() / 2;  // the same question twice
  CHECK(all.out.substr(0, half) == all.out.substr(half));
  CHECK(chat("-f " + chunks.a).code == 2);
  CHECK(run_kvasir({"chat", "-m", kModel, "--blend", "0.2"}).code == 2);
}

TEST_CASE("task blend puts the same samples to every arm") {
  const Json e = json_of({"task", "blend", "-m", kModel, "--compute", "f32", "--length", "700",
                          "-n", "2", "--n-chunks", "5", "--blend", "prefix,reuse,0.2,1"});
  REQUIRE(e["cells"].size() == 10);
  for (size_t task = 0; task < 2; ++task) {
    const auto cell = [&](size_t arm) { return e["cells"][5 * task + arm]; };
    CHECK(cell(0)["arm"] == "full");
    CHECK(cell(0)["recomputed_share"] == 1.0);
    CHECK(cell(0)["kl_to_full"] == 0.0);
    CHECK(cell(1)["arm"] == "prefix");
    CHECK(cell(1)["kl_to_full"] == 0.0);
    CHECK(cell(1)["recomputed_share"].get<double>() < 0.95);
    CHECK(cell(2)["recomputed_share"] == 0.0);
    CHECK(cell(2)["kl_to_full"].get<double>() > 0);
    CHECK(cell(3)["recomputed_share"].get<double>() > 0.1);
    CHECK(cell(3)["kl_to_full"].get<double>() < cell(2)["kl_to_full"].get<double>());
    CHECK(cell(4)["kl_to_full"] == 0.0);
    CHECK(cell(4)["right"] == cell(0)["right"]);
  }
}

TEST_CASE("bench blend draws what reuse changes by layer, by place and by share") {
  const Json b =
      json_of({"bench", "blend", "-m", kModel, "--compute", "f32", "--n-chunks", "4",
               "--chunk-tokens", "60", "--question-tokens", "8", "--blend", "reuse,0.3,1"});
  REQUIRE(b["arms"].size() == 4);
  CHECK(b["arms"][3]["kl_to_full"] == 0.0);
  CHECK(b["arms"][3]["attention_deviation"] == 0.0);
  for (const char* key : {"kl_to_full", "attention_deviation"})
    CHECK(b["arms"][1][key].get<double>() > b["arms"][2][key].get<double>());
  const auto layers = b["deviation_of_layer"].get<std::vector<double>>();
  CHECK(layers[0] < 1e-2);  // K and V in f16
  CHECK(layers[1] > 10 * layers[0]);
  CHECK(b["rank_correlation_with_next_layer"].size() == layers.size() - 2);
  REQUIRE(b["deviation_of_chunk"].size() == 4);
  CHECK(b["deviation_of_chunk"][0] == 0.0);
  CHECK(b["deviation_of_chunk"][1].get<double>() > 0);
}
