// kvasir task as a program uses it: lines, records, reports.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>

#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::read_bytes;
using kvasir::test::run_kvasir;
using kvasir::test::TinyModel;
using Json = nlohmann::json;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(Json::parse(line));
  return out;
}

TEST_CASE("task generate writes samples whose answers stand at the said bytes and tokens") {
  const TinyModel m;
  const Finished done = run_kvasir({"task", "generate", "--task", "needle_multi_query,kv_retrieval",
                                    "--length", "600", "-n", "4", "--seed", "9", "-m", m.path});
  REQUIRE(done.code == 0);
  CHECK(done.err == "");
  const auto lines = lines_of(done.out);
  REQUIRE(lines.size() == 8);
  for (const Json& line : lines) {
    const std::string prompt = line["prompt"];
    CHECK(line["seed"] == 9);
    CHECK(line["length"].get<uint32_t>() <= 600);
    REQUIRE(line["turns"].size() == line["answers"].size());
    std::string text = prompt;
    for (size_t i = 0; i < line["turns"].size(); ++i) {
      const Json& turn = line["turns"][i];
      if (i > 0) text += turn["question"];
      CHECK(turn["answer_bytes"][0] == text.size());
      text += turn["answer"];
      CHECK(turn["answer"] == line["answers"][i]);
    }
    const std::vector<uint32_t> ids =
        json_of({"tokenize", "-m", m.path, "-p", text, "--json"})["tokens"];
    for (const Json& needle : line["needles"]) {
      const auto begin = needle["value_bytes"][0].get<size_t>();
      const std::string value = needle["value"];
      CHECK(prompt.substr(begin, needle["value_bytes"][1].get<size_t>() - begin) == value);
      std::string list;
      for (auto t = needle["value_tokens"][0].get<size_t>();
           t < needle["value_tokens"][1].get<size_t>(); ++t)
        list.append(list.empty() ? "" : ",").append(std::to_string(ids.at(t)));
      const std::string piece = run_kvasir({"tokenize", "-m", m.path, "--decode", list}).out;
      CHECK(piece.find(value) != std::string::npos);
    }
    CHECK(ids.size() + 1 == line["length"].get<uint32_t>());  // and the last line end
  }
}

TEST_CASE("task generate is the same every time, in a file as on standard output") {
  const TinyModel m;
  const std::string file = m.folder.path("samples.jsonl");
  const std::vector<std::string> command = {"task", "generate", "--task", "all", "--length",
                                            "500",  "-n",       "2",      "-m",  m.path};
  const Finished first = run_kvasir(command);
  std::vector<std::string> to_file = command;
  to_file.insert(to_file.end(), {"-o", file});
  CHECK(run_kvasir(to_file).out == "");
  CHECK(read_bytes(file) == first.out);
  CHECK(lines_of(first.out).size() == 18);
}

TEST_CASE("task generate --format ids writes records of the length, ids then mask") {
  const TinyModel m;
  const Finished done = run_kvasir({"task", "generate", "--mix", "repeat=2,kv_retrieval=1",
                                    "--format", "ids", "--key-tokens", "1-2", "--value-tokens",
                                    "1-3", "--length", "128", "-n", "50", "-m", m.path});
  REQUIRE(done.code == 0);
  REQUIRE(done.out.size() == 50 * 128 * 3);
  const uint32_t vocab = json_of({"model", "info", "-m", m.path, "--json"})["vocab_size"];
  size_t marked = 0;
  for (size_t record = 0; record < 50; ++record) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(done.out.data()) + record * 384;
    for (size_t t = 0; t < 128; ++t) {
      CHECK(bytes[2 * t] + 256u * bytes[2 * t + 1] < vocab);
      CHECK(bytes[256 + t] <= 1);
      marked += bytes[256 + t];
    }
  }
  CHECK(marked > 50 * 128 / 10);
}

TEST_CASE("an endless stream of records ends with its reader, quietly") {
  const TinyModel m;
  // `head` closes the pipe after 1,000 bytes; the test looks at the writer's status and messages.
  const std::string whole = "{ '" + kvasir::test::kvasir_binary() +
                            "' task generate --task passkey --format ids --length 128 -n 0 -m '" +
                            m.path + "' 2>'" + m.folder.path("err") + "'; echo $? >'" +
                            m.folder.path("status") + "'; } | head -c 1000 >/dev/null";
  CHECK(std::system(whole.c_str()) == 0);  // NOLINT: our own command line
  CHECK(read_bytes(m.folder.path("status")) == "0\n");
  CHECK(read_bytes(m.folder.path("err")) == "");
}

TEST_CASE("task eval reports every task, length and strategy, dense first") {
  const TinyModel m;
  const std::string file = m.folder.path("samples.jsonl");
  const Json report =
      json_of({"task", "eval", "-m", m.path, "-s", "streaming", "--set", "cache.window_tokens=64",
               "--task", "passkey,mqar", "--length", "256,400", "-n", "3", "--json", "-o", file});
  REQUIRE(report["cells"].size() == 8);
  const auto lines = lines_of(read_bytes(file));
  CHECK(lines.size() == 24);
  for (size_t i = 0; i < 8; ++i) {
    const Json& cell = report["cells"][i];
    CHECK(cell["strategy"] == (i % 2 ? "streaming" : "dense"));
    CHECK(cell["task"] == (i / 2 % 2 ? "mqar" : "passkey"));
    CHECK(cell["length"] == (i < 4 ? 256 : 400));
    CHECK(cell["samples"] == 3);
    CHECK(cell["accuracy_low"] <= cell["accuracy"]);
    CHECK(cell["accuracy"] <= cell["accuracy_high"]);
    uint32_t correct = 0, tokens = 0;
    for (const Json& line : lines)
      if (line["task"] == cell["task"] && line["length"] == cell["length"] &&
          line["strategy"] == cell["strategy"]) {
        correct += line["correct"].get<bool>();
        tokens += line["answer_tokens"].get<uint32_t>();
        CHECK(line["correct"] == (line["answer_tokens_right"] == line["answer_tokens"]));
      }
    CHECK(cell["correct"] == correct);
    CHECK(cell["answer_tokens"] == tokens);
    const Json& engagement = cell["engagement"];
    if (i % 2) CHECK(engagement["tokens_attended"] < engagement["tokens_considered"]);
  }
}

TEST_CASE("task eval --parallel gives the answers of one by one") {
  const TinyModel m;
  const auto run = [&](const std::string& n_parallel) {
    const std::string file = m.folder.path("samples-" + n_parallel + ".jsonl");
    Json report =
        json_of({"task",      "eval",         "-m",       m.path,       "-s",
                 "streaming", "-s",           "snapkv",   "--set",      "cache.block_size=16",
                 "--task",    "passkey,mqar", "--length", "256",        "-n",
                 "5",         "--compute",    "f32",      "--parallel", n_parallel,
                 "--json",    "-o",           file});
    CHECK(report["parallel"].dump() == n_parallel);
    return std::pair(report, read_bytes(file));
  };
  const auto [one, lines_of_one] = run("1");
  const auto [four, lines_of_four] = run("4");
  CHECK(lines_of_one == lines_of_four);
  REQUIRE(one["cells"].size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const Json &a = one["cells"][i], &b = four["cells"][i];
    for (const char* key : {"correct", "answer_tokens", "answer_tokens_right", "strategy"})
      CHECK(a[key] == b[key]);
    for (const Json* report : {&one, &four}) {
      const Json* cell = &(*report)["cells"][i];
      CHECK((*cell)["wall_seconds"].get<double>() > 0);
      CHECK((*cell)["wall_seconds"] == (*report)["cells"][i - i % 3]["wall_seconds"]);
      // Dense attention reads each prompt once, for all three strategies.
      CHECK((*cell)["prefill_shared_with"] == (i % 3 ? Json("dense") : Json()));
      CHECK(((*cell)["engagement"]["prefill"]["model_ms"].get<double>() > 0) == (i % 3 == 0));
    }
  }
}

// The model of models/ finds pass keys in layer 1, which Quest's preset leaves dense.
TEST_CASE("task eval says of a strategy whose choice did not matter that it did not engage") {
  const kvasir::test::TempDir folder;
  const std::string blocks = folder.write(
      "blocks.toml",
      "[cache]\nblock_size = 16\nwindow_tokens = 32\n[selector]\nplugin = 'kvasir.block_topk'\n"
      "[representative]\nplugin = 'kvasir.minmax'\n");
  const std::vector<std::string> command = {
      "task",     "eval",
      "-m",       KVASIR_SOURCE_DIR "/models/kvasir-retrieval-3m-f16.gguf",
      "-s",       "quest",
      "-s",       blocks,
      "--set",    "selector.budget_tokens=64",
      "--task",   "passkey",
      "--length", "1024",
      "-n",       "10"};
  const Finished done = run_kvasir(command);
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  CHECK(has(done.out, "did not engage: quest: its sparse layers hold none of the retrieval"));
  auto as_json = command;
  as_json.emplace_back("--json");
  const Json report = json_of(as_json);
  REQUIRE(report["cells"].size() == 3);
  CHECK(report["cells"][0]["masked_correct"].is_null());
  CHECK(report["cells"][1]["engaged"] == false);
  CHECK(report["cells"][1]["masked_correct"].get<int>() >= 9);
  CHECK(report["cells"][2]["engaged"] == true);
  CHECK(report["cells"][2]["masked_correct"].get<int>() <= 5);
}

TEST_CASE("task score takes predictions of other programs, and names the line that is none") {
  const kvasir::test::TempDir folder;
  const std::string file =
      folder.write("predictions.jsonl",
                   "{\"prediction\": \"The key is 042.\", \"ground_truth\": \"042\"}\n\n"
                   "{\"pred\": \"no 1\", \"outputs\": [\"042\"]}\n");
  const Json scored = json_of({"task", "score", file, "--scorer", "passkey", "--json"});
  CHECK(scored["samples"] == 2);
  CHECK(scored["score"] == 50.0);
  const std::string bad = folder.write("bad.jsonl", "{\"prediction\": \"1\"}\n");
  const Finished refused = run_kvasir({"task", "score", bad, "--scorer", "passkey"});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("bad.jsonl:1: expected") != std::string::npos);
}

TEST_CASE("task eval prints an aligned table with intervals and verdicts") {
  const TinyModel m;
  const auto evaluate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"task",     "eval", "-m", m.path, "--task", "needle",
                                        "--length", "256",  "-n", "2",    "-s",     "streaming"};
    command.insert(command.end(), more.begin(), more.end());
    return run_kvasir(command);
  };
  const Finished done = evaluate({});
  REQUIRE(done.code == 0);
  for (const char* word : {"task", "95 % interval", "needle", "dense", "/2", "MB/step"})
    CHECK(done.out.find(word) != std::string::npos);
  // Random weights answer nothing, so no sample differs, of too few to say that none would.
  CHECK(done.out.find("could never tell") != std::string::npos);
  CHECK(done.out.find("p after Holm over 1 comparison.") != std::string::npos);
  const Json report = Json::parse(evaluate({"--json"}).out);
  CHECK(report["cells"][0]["against_dense"].is_null());
  const Json& verdict = report["cells"][1]["against_dense"];
  CHECK(verdict["verdict"] == "could never tell");
  CHECK(verdict["p_holm"] == 1.0);
  CHECK(verdict["samples_to_tell"].is_null());
  CHECK(verdict["difference_low"] < 0);
  const Finished wide = evaluate({"--margin", "90"});
  CHECK(wide.out.find("equivalent") != std::string::npos);
  CHECK(wide.out.find("lies within 90 points") != std::string::npos);
  CHECK(evaluate({"--margin", "101"}).code == 2);
}

}  // namespace
