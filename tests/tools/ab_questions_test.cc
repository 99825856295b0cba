// kvasir ab with several questions about a context, with times, and with samples answered at once.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/tools/ab_run.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;
using Row = std::vector<std::string>;

// Fields of a line of CSV (RFC 4180), texts with their quotes.
Row fields_of(const std::string& line) {
  Row out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

// Lines of a predictions.csv, by name of the column.
std::vector<std::map<std::string, std::string>> records_in(const std::string& run) {
  std::istringstream lines(read_bytes(run + "/predictions.csv"));
  std::string line;
  std::getline(lines, line);
  const Row names = fields_of(line);
  std::vector<std::map<std::string, std::string>> out;
  while (std::getline(lines, line)) {
    const Row values = fields_of(line);
    REQUIRE(values.size() == names.size());
    auto& record = out.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) record[names[i]] = values[i];
  }
  return out;
}

uint64_t sum_of(const std::vector<std::map<std::string, std::string>>& records,
                const std::string& strategy, const std::string& column) {
  uint64_t sum = 0;
  for (const auto& r : records)
    if (r.at("strategy") == "\"" + strategy + "\"") sum += std::stoull(r.at(column));
  return sum;
}

}  // namespace

TEST_SUITE_BEGIN("tools/ab_questions");

// The model of models/ reads 1,024 tokens well. SnapKV keeps what the first question, which it sees
// in the prompt, attends to; the second one comes when the rest is gone.
TEST_CASE("what a strategy loses when a question comes later is told from what it loses at once") {
  const TempDir folder;
  const std::string run = folder.path("run");
  const Words command = {"ab",
                         "snapkv",
                         "--task",
                         "kv_retrieval",
                         "--length",
                         "1024",
                         "--questions",
                         "2",
                         "--question-in-prompt",
                         "--set",
                         "selector.budget_tokens=192",
                         "--set",
                         "cache.window_tokens=32",
                         "-n",
                         "16",
                         "--quick",
                         "--no-ladder",
                         "-o",
                         run};
  const Finished done = run_kvasir(command);
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  CAPTURE(done.out);
  CHECK(has(done.out, "2 questions about each context"));
  CHECK(has(done.out, "exact sign-flip test by context"));
  CHECK(has(done.out, "snapkv in kv_retrieval at 1024: loses "));
  const Json report = report_of(run);
  CHECK(report["samples"] == 16);
  const Json dense = cell_of(report, "dense"), snapkv = cell_of(report, "snapkv");
  CHECK(dense["samples"] == 16);
  CHECK(dense["answers"] == 32);
  REQUIRE(snapkv["by_question"].size() == 2);
  const Json &first = snapkv["by_question"][0], &second = snapkv["by_question"][1];
  CHECK(dense["by_question"][1]["right"].get<int>() >= 12);
  CHECK(first["lost"].get<int>() + second["lost"].get<int>() == snapkv["lost"].get<int>());
  CHECK(second["lost"].get<int>() > first["lost"].get<int>());
  CHECK(snapkv["later_loss"].get<double>() ==
        doctest::Approx((second["lost"].get<double>() - second["won"].get<double>() -
                         first["lost"].get<double>() + first["won"].get<double>()) /
                        16));
  CHECK(snapkv["later_loss_95"][0].get<double>() > 0);
  // Every question is a record of its own.
  const auto records = records_in(run);
  REQUIRE(records.size() == 16 * 2 * 2);
  CHECK(records[0].at("question") == "1");
  CHECK(records[1].at("question") == "2");
  CHECK(records[0].at("expected") != records[1].at("expected"));
  CHECK(json_of({"ab", "show", run, "--json"}) == report);
  CHECK(json_of({"ab", "diff", run, run, "--json"})["rows"][1]["samples"] == 16);
}

TEST_CASE("questions asked by themselves divide what the sample counts") {
  const TinyModel m;
  const auto run = [&](const Words& words) {
    const std::string folder = m.folder.path("run" + std::to_string(words.size()));
    Words command = {"ab",       "-m",
                     m.path,     "streaming",
                     "--set",    "cache.block_size=16",
                     "--set",    "cache.window_tokens=32",
                     "--task",   "mqar",
                     "--length", "256",
                     "-n",       "4",
                     "--quick",  "-o",
                     folder};
    command.insert(command.end(), words.begin(), words.end());
    const Finished done = run_kvasir(command);
    REQUIRE_MESSAGE(done.code == 0, done.err);
    return records_in(folder);
  };
  const auto apart = run({"--questions", "3"}), together = run({"--queries", "3", "--no-ladder"});
  CHECK(apart.size() == 3 * together.size());
  for (const char* strategy : {"dense", "streaming"})
    for (const char* column :
         {"answer_tokens", "answer_tokens_right", "predictions", "agreed", "decoded",
          "tokens_considered", "tokens_attended", "kv_bytes_read", "bytes_read_to_choose"})
      CHECK(sum_of(apart, strategy, column) == sum_of(together, strategy, column));
}

TEST_CASE("times are taken of every sample, and stand as ratios in all reports") {
  const TinyModel m;
  const std::string run = m.folder.path("run");
  const Finished done =
      run_kvasir({"ab", "-m", m.path, "streaming", "--set", "cache.block_size=16", "--task",
                  "passkey", "--length", "256", "-n", "7", "--quick", "-o", run});
  REQUIRE_MESSAGE(done.code == 0, done.err);
  CHECK(has(done.out, "decode x"));
  CHECK(has(read_bytes(run + "/report.html"), "Speed of decoding"));
  // The median of seven ratios is the fourth; its interval lies between the least and the largest.
  std::vector<double> ratios;
  const auto records = records_in(run);
  for (size_t i = 0; i < records.size(); i += 2) {
    CHECK(std::stoull(records[i].at("prefill_ns")) > 0);
    ratios.push_back(std::stod(records[i].at("decode_ns")) /
                     std::stod(records[i + 1].at("decode_ns")));
  }
  std::sort(ratios.begin(), ratios.end());
  const Json speedup = cell_of(report_of(run), "streaming")["decode_speedup"];
  CHECK(speedup["samples"] == 7);
  CHECK(speedup["median"].get<double>() == doctest::Approx(ratios[3]));
  CHECK(speedup["median_95"][0].get<double>() == doctest::Approx(ratios[0]));
  CHECK(speedup["median_95"][1].get<double>() == doctest::Approx(ratios[6]));
}

// Choosing at random, evicting, scoring by several plugins: each has a state that another sample
// could disturb.
TEST_CASE("samples answered at once have the answers of one at a time") {
  const TinyModel m;
  const auto run = [&](const std::string& parallel, const Words& more) {
    const std::string folder = m.folder.path("run" + parallel + std::to_string(more.size()));
    Words command = {"ab",       "-m",
                     m.path,     "streaming",
                     "snapkv",   "h2o",
                     "quest",    "tova",
                     "--set",    "selector.budget_tokens=32",
                     "--set",    "cache.window_tokens=16",
                     "--task",   "passkey,mqar",
                     "--length", "200,300",
                     "-n",       "6",
                     "--quick",  "--parallel",
                     parallel,   "-o",
                     folder};
    command.insert(command.end(), more.begin(), more.end());
    const Finished done = run_kvasir(command);
    REQUIRE_MESSAGE(done.code == 0, done.err);
    auto records = records_in(folder);
    for (auto& record : records) {
      record.erase("prefill_ns");
      record.erase("decode_ns");
    }
    return records;
  };
  for (const Words& more : {Words{}, Words{"--stop-when", "decided"}}) {
    const auto one = run("1", more);
    const auto five = run("5", more);
    REQUIRE(one.size() == five.size());
    for (size_t i = 0; i < one.size(); ++i) CHECK(one[i] == five[i]);
  }
}

TEST_CASE("a run goes on with another number of samples at once") {
  const TinyModel m;
  const std::string run = m.folder.path("run"), whole = m.folder.path("whole");
  const auto command = [&](const std::string& folder) {
    return Words{"ab",      "-m",         m.path,     "streaming", "--set", "cache.block_size=16",
                 "--task",  "mqar",       "--length", "256",       "-n",    "5",
                 "--quick", "--parallel", "3",        "-o",        folder};
  };
  REQUIRE(run_kvasir(command(run)).code == 0);
  const std::string all = read_bytes(run + "/predictions.csv");
  // As if it had been ended within the third sample.
  std::string cut;
  std::istringstream lines(all);
  std::string line;
  for (int i = 0; i < 6 && std::getline(lines, line); ++i) cut += line + "\n";
  std::ofstream(run + "/predictions.csv") << cut;
  const Finished done = run_kvasir({"ab", "--resume", run, "--parallel", "2"});
  REQUIRE_MESSAGE(done.code == 0, done.err);
  CHECK(read_bytes(run + "/predictions.csv") == all);
}

TEST_SUITE_END();
