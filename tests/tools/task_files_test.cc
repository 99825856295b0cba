// kvasir task with files of samples and predictions, as other harnesses have them.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/data.h"
#include "tests/tools/tiny_model.h"

namespace {

using kvasir::test::Finished;
using kvasir::test::has;
using kvasir::test::json_of;
using kvasir::test::run_kvasir;
using kvasir::test::TinyModel;
using Json = nlohmann::json;

std::vector<Json> json_lines_in(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

struct Samples : TinyModel {
  std::string make(const std::string& task, const std::string& format, const std::string& file) {
    const std::string made = folder.path(file);
    const Finished done =
        run_kvasir({"task", "generate", "--task", task, "--length", "400", "-n", "3", "--seed", "4",
                    "--format", format, "-m", path_, "-o", made});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    return made;
  }
  Finished eval(std::vector<std::string> more) {
    std::vector<std::string> command = {"task", "eval",      "-m",    path_,
                                        "-s",   "streaming", "--set", "cache.window_tokens=64"};
    command.insert(command.end(), more.begin(), more.end());
    return run_kvasir(command);
  }
  std::string path_ = TinyModel::path;
};

TEST_CASE("task list says of every task how it is judged and what it asks for") {
  const Json list = json_of({"task", "list", "--json"});
  CHECK(list.size() > 20);
  const std::string text = run_kvasir({"task", "list"}).out;
  const std::string help = run_kvasir({"task", "generate", "--help"}).out;
  for (const Json& task : list) {
    CHECK(has(text, task["task"]));
    CHECK(has(text, task["asks"]));
    CHECK(has(help, task["task"]));
  }
}

TEST_CASE(
    "samples of a file are answered as the ones that were made, judged by tokens and by text") {
  Samples s;
  const std::string file = s.make("passkey,multi_turn,tool_call", "jsonl", "samples.jsonl");
  for (const std::string judge : {"tokens", "text"}) {
    CAPTURE(judge);
    const std::string made = s.folder.path(judge + "-made"), read = s.folder.path(judge + "-read");
    REQUIRE(s.eval({"--task", "passkey,multi_turn,tool_call", "--length", "400", "-n", "3",
                    "--seed", "4", "--judge", judge, "-o", made})
                .code == 0);
    REQUIRE(s.eval({"--samples", file, "--judge", judge, "-o", read}).code == 0);
    const auto a = json_lines_in(made), b = json_lines_in(read);
    REQUIRE(a.size() == 18);
    REQUIRE(b.size() == 18);
    for (size_t i = 0; i < a.size(); ++i)
      for (const char* key :
           {"task", "strategy", "index", "prompt_tokens", "score", "expected", "given", "depths"})
        CHECK(a[i][key] == b[i][key]);
  }
}

TEST_CASE("samples for another harness are answered, and its scorer finds what was reported") {
  Samples s;
  for (const std::string format : {"ruler", "infinitebench", "longbench2", "lm-eval"}) {
    CAPTURE(format);
    const std::string file = s.make("needle_multi_key", format, "needle_multi_key.jsonl");
    const std::string folder = s.folder.path("predictions-" + format);
    const Finished done =
        s.eval({"--samples", file, "--predictions", folder, "--json", "--max-new-tokens", "5"});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const Json report = Json::parse(done.out);
    REQUIRE(report["cells"].size() == 2);
    CHECK(report["cells"][0]["samples"] == 3);
    CHECK(report["cells"][0]["judged_by"] == "text");
    std::filesystem::remove(file);
    const std::string path =
        folder + (format == "ruler"           ? "/dense/needle_multi_key.jsonl"
                  : format == "infinitebench" ? "/dense/preds_needle_multi_key.jsonl"
                  : format == "longbench2"    ? "/dense.jsonl"
                                              : "/dense/samples_needle_multi_key.jsonl");
    CHECK(json_lines_in(path).size() == 3);
    if (format == "ruler" || format == "infinitebench") {
      const Json scored =
          json_of({"task", "score", path, "--scorer", "string_match_all", "--json"});
      CHECK(scored["score"].get<double>() ==
            doctest::Approx(100 * report["cells"][0]["accuracy"].get<double>()));
    }
  }
}

TEST_CASE("what does not go together is said before a model is loaded") {
  Samples s;
  const std::string file = s.make("passkey", "jsonl", "passkey.jsonl");
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Finished done = s.eval(more);
    CHECK(done.code == 2);
    return done.err;
  };
  CHECK(has(refusal({"--samples", file, "--task", "needle"}), "give one of --task"));
  CHECK(has(refusal({}), "give one of --task"));
  CHECK(has(refusal({"--samples", file, "--length", "400"}), "--length 400: samples of files"));
  CHECK(has(refusal({"--task", "passkey", "--predictions", "p"}), "give --samples"));
  CHECK(has(refusal({"--samples", file, "--predictions", "p"}), "give --predictions-format"));
  CHECK(has(refusal({"--samples", file, "--samples-format", "rular"}), "did you mean ruler?"));
  CHECK(has(refusal({"--samples", s.folder.write("bad.jsonl", "{\"prompt\": 1, \"turns\": []}")}),
            "bad.jsonl:1: field `prompt`: expected a text"));
  CHECK(has(run_kvasir({"task", "generate", "--task", "passkey,needle", "--format", "ruler", "-m",
                        s.path_})
                .err,
            "its files hold one task"));
  CHECK(has(
      run_kvasir({"task", "generate", "--task", "needle", "--depths", "0,101", "-m", s.path_}).err,
      "--depths 0,101: expected percents"));
}

TEST_CASE("task eval --depths reports each depth, and turns and eighths where there are any") {
  Samples s;
  const Finished done = s.eval({"--task", "needle,multi_turn,uuid_retrieval", "--length", "700",
                                "-n", "2", "--depths", "0,100"});
  CHECK(has(done.err, "--depths: multi_turn has no single statement"));
  const Json needle = Json::parse(
      s.eval({"--task", "needle", "--length", "400", "-n", "4", "--depths", "0,100", "--json"})
          .out);
  CHECK(needle["cells"][0]["accuracy_by_depth"].size() == 2);
  const Finished text =
      s.eval({"--task", "multi_turn,uuid_retrieval", "--length", "700", "-n", "2"});
  CAPTURE(text.err);
  CHECK(has(text.out, "Accuracy in percent by turn:"));
  CHECK(has(text.out, "Accuracy in percent by eighth of the value:"));
}

TEST_CASE("ab compares strategies on samples of a file as on those that are made") {
  Samples s;
  const std::string file = s.make("passkey", "jsonl", "passkey.jsonl");
  const auto cells = [&](const std::string& run, const std::vector<std::string>& samples) {
    std::vector<std::string> command = {
        "ab",     "-m", s.path_,           "streaming", "--set",   "cache.window_tokens=64",
        "-n",     "3",  "--seed",          "4",         "--quick", "--no-ladder",
        "--json", "-o", s.folder.path(run)};
    command.insert(command.end(), samples.begin(), samples.end());
    return json_of(command)["cells"];
  };
  const Json made = cells("made", {"--task", "passkey", "--length", "400"});
  const Json read = cells("read", {"--samples", file});
  REQUIRE(made.size() == 2);
  REQUIRE(read.size() == 2);
  for (size_t i = 0; i < 2; ++i)
    for (const char* key : {"task", "strategy", "samples", "right", "answer_tokens_right",
                            "mean_kl", "attended_percent", "by_depth"})
      CHECK(made[i][key] == read[i][key]);
  const std::string several =
      s.folder.write("several.jsonl", R"({"index": 0, "input": "a\nb?", "outputs": ["c", "d"]})");
  const Finished refused = run_kvasir(
      {"ab", "-m", s.path_, "streaming", "--samples", several, "-o", s.folder.path("refused")});
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "sample 0: has several right texts"));
}

struct Published {
  const char* model;
  double kv_retrieval, passkey;  // percent
};

// InfiniteBench's README, and the answers it was computed from.
KVASIR_DATA_TEST_CASE("task score prints InfiniteBench's published table from its answers") {
  KVASIR_REQUIRE_DATA(data);
  for (const Published& row :
       {Published{"gpt4", 89.00, 100.00}, Published{"kimi", 53.60, 98.14},
        Published{"claude2", 65.40, 97.80}, Published{"yarn-mistral", 0.00, 92.71}}) {
    for (const std::string task : {"kv_retrieval", "passkey"}) {
      const auto file =
          data / "golden/infinitebench-preds" / (std::string(row.model) + "." + task + ".jsonl");
      const Json scored = json_of({"task", "score", file.string(), "--scorer", task, "--json"});
      CHECK(scored["samples"] == (task == "passkey" ? 590 : 500));
      const double published = task == "passkey" ? row.passkey : row.kv_retrieval;
      CHECK(std::round(100 * scored["score"].get<double>()) == std::round(100 * published));
    }
  }
}

}  // namespace
