// kvasir ab as its users meet it: verdicts, the files of a run, its report, mistakes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/tools/ab_run.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

// A run whose records are made up: 1 right, 0 wrong, per sample; dense attention's first.
class MadeUpRun {
 public:
  explicit MadeUpRun(const TinyModel& m) {
    REQUIRE(run_kvasir({"ab", "-m", m.path, "streaming", "snapkv", "--set", "cache.block_size=16",
                        "--task", "passkey", "--length", "256", "-n", "1", "--quick", "--no-ladder",
                        "-o", path()})
                .code == 0);
    const std::string first = read_bytes(file());
    header_ = first.substr(0, first.find('\n') + 1);
    const std::string meta = read_bytes(path() + "/run_meta.json");
    meta_ = Json::parse(meta);
  }
  std::string path() const { return folder_.path("run"); }
  std::string file() const { return path() + "/predictions.csv"; }
  void write(const std::string& dense, const std::string& streaming, const std::string& snapkv,
             const std::string& tail = "") {
    meta_["declared"]["samples"] = dense.size();
    std::ofstream(path() + "/run_meta.json") << meta_;
    std::ofstream out(file());
    out << header_;
    for (size_t i = 0; i < dense.size(); ++i) {
      out << line(i, "dense", dense[i]) << line(i, "streaming", streaming[i])
          << line(i, "snapkv", snapkv[i]);
    }
    out << tail;
  }
  static std::string line(size_t index, const std::string& strategy, char right) {
    return "\"passkey\",256," + std::to_string(index) + ",1,\"" + strategy + "\",0," + right +
           ",5," + (right == '1' ? "5" : "2") + ",0.5,6,5,0.25,200,7,1000,90,100,4000,10,0,\"\"," +
           "\"1\",\"2\",0,0\n";
  }
  Json show() const { return json_of({"ab", "show", path(), "--json"}); }

 private:
  TempDir folder_;
  std::string header_;
  Json meta_;
};

}  // namespace

TEST_SUITE_BEGIN("tools/ab");

TEST_CASE("verdicts of a run are those of its records") {
  const TinyModel m;
  MadeUpRun run(m);
  const std::string right(40, '1'), wrong(40, '0');
  SUBCASE("identical arms are the same, one that always fails is worse") {
    run.write(right, right, wrong);
    const Json report = run.show();
    CHECK(report["samples"] == 40);
    const Json same = cell_of(report, "streaming"), worse = cell_of(report, "snapkv");
    CHECK(same["verdict"] == "same");
    CHECK(same["difference"] == 0.0);
    CHECK(worse["verdict"] == "worse");
    CHECK(worse["lost"] == 40);
    CHECK(worse["difference"] == -1.0);
    // 2 / 2^40, twice for two comparisons; the other's p is 1.
    CHECK(worse["p_holm"].get<double>() == doctest::Approx(4 * std::pow(0.5, 40)));
    CHECK(worse["attended_percent"] == 10.0);
    CHECK(worse["bytes_per_step"].get<double>() == doctest::Approx(4010.0 / 7));
    CHECK(worse["mean_kl"] == 0.25);
    CHECK(worse["same_top1"].get<double>() == doctest::Approx(5.0 / 6));
    CHECK(worse["answer_tokens_right"].get<double>() == doctest::Approx(0.4));
    CHECK(same["pareto"] == true);
    CHECK(worse["pareto"] == false);
    CHECK(same["tied_with_best"] == true);
    CHECK(worse["tied_with_best"] == false);
  }
  SUBCASE("an arm ahead of dense attention is suspicious, a small loss cannot be told") {
    run.write(wrong, right, std::string(37, '0') + "111");
    const Finished text = run_kvasir({"ab", "show", run.path()});
    CHECK(has(text.out, "suspicious: better"));
    CHECK(cell_of(run.show(), "streaming")["verdict"] == "better");
    const Json few = cell_of(run.show(), "snapkv");
    CHECK(few["verdict"] == "cannot tell");
    CHECK(few["samples_to_tell"].get<int>() > 40);
  }
  SUBCASE("too few samples could never tell") {
    run.write("11111", "01111", "00000");
    CHECK(cell_of(run.show(), "snapkv")["verdict"] == "could never tell");
  }
  SUBCASE("half a sample at the end does not count, half a line neither") {
    run.write("11", "10", "11", MadeUpRun::line(2, "dense", '1') + "\"passkey\",25");
    const Json report = run.show();
    CHECK(report["samples"] == 2);
    CHECK(cell_of(report, "streaming")["lost"] == 1);
  }
  SUBCASE("nor do no differences of so few") {
    run.write("11111", "11111", "11111");
    CHECK(cell_of(run.show(), "snapkv")["verdict"] == "could never tell");
  }
  SUBCASE("a sample in the middle that lacks a record is an error that names it") {
    run.write("11", "11", "11",
              MadeUpRun::line(2, "dense", '1') + MadeUpRun::line(3, "dense", '1') +
                  MadeUpRun::line(3, "streaming", '1') + MadeUpRun::line(3, "snapkv", '1'));
    const Finished done = run_kvasir({"ab", "show", run.path()});
    CHECK(done.code == 2);
    CHECK(has(done.err, "predictions.csv:8: 1 of a sample's 3 records"));
  }
  SUBCASE("a question that was not asked is an error that names its line") {
    std::string second = MadeUpRun::line(2, "streaming", '1');
    second.replace(second.find(",2,1,"), 5, ",2,7,");
    run.write("11", "11", "11",
              MadeUpRun::line(2, "dense", '1') + second + MadeUpRun::line(2, "snapkv", '1'));
    const Finished done = run_kvasir({"ab", "show", run.path()});
    CHECK(done.code == 2);
    CHECK(has(done.err, "predictions.csv:9: question 7 is not the next one"));
  }
  SUBCASE("a line in the middle that is no record is an error that names it") {
    run.write("11", "11", "11", "nonsense\n" + MadeUpRun::line(2, "dense", '1'));
    const Finished done = run_kvasir({"ab", "show", run.path()});
    CHECK(done.code == 2);
    CHECK(has(done.err, "predictions.csv:8: not a record of a run"));
  }
}

TEST_CASE("a run's files say what was declared, and every sample under every strategy") {
  const TinyModel m;
  const std::string run = m.folder.path("run");
  const Finished done =
      run_kvasir({"ab", "-m", m.path, "streaming", "quest", "--task", "passkey,mqar", "--length",
                  "256,400", "-n", "3", "--margin", "2", "--quick", "-o", run});
  REQUIRE_MESSAGE(done.code == 0, done.err);
  CHECK(has(done.err, "run folder: " + run));
  // Dense attention, two arms, and the three rungs of quest: streaming chooses nothing.
  CHECK(lines_in(read_bytes(run + "/predictions.csv")) == 1 + 3 * 2 * 2 * 6);
  const Json meta = Json::parse(read_bytes(run + "/run_meta.json"));
  CHECK(meta["declared"]["margin"] == 0.02);
  REQUIRE(meta["declared"]["strategies"].size() == 6);
  CHECK(meta["declared"]["strategies"][2]["ladder"]["budget_tokens"] == 1024);
  CHECK(meta["declared"]["strategies"][3]["label"] == "oracle of quest");
  CHECK(meta["declared"]["strategies"][4]["label"] == "random of quest");
  CHECK(meta["declared"]["strategies"][5]["label"] == "masked of quest");
  CHECK(meta["declared"]["strategies"][1]["label"] == "streaming");
  CHECK(meta["declared"]["strategies"][1]["configuration"]["cache.sink_tokens"] == "4");
  CHECK(meta["version"].is_string());
  CHECK(meta["commit"].is_string());
  CHECK(meta["machine"]["cpu"].is_object());
  for (const Json& plugin : meta["plugins"]) CHECK(plugin["xxh3"].get<std::string>().size() == 16);
  const Json report = Json::parse(read_bytes(run + "/metrics.json"));
  CHECK(report["cells"].size() == 24);
  CHECK(report["comparisons"] == 8);
  CHECK(lines_in(done.out.substr(0, done.out.find("\n\n"))) == 12);
  CHECK(json_of({"ab", "show", run, "--json"}) == report);
  CHECK(run_kvasir({"ab", "show", run}).out == done.out);
  CHECK(run_kvasir({"ab", "show", run, "--markdown"}).out == read_bytes(run + "/report.md"));
  const Finished again = run_kvasir({"ab", "-m", m.path, "streaming", "-o", run});
  CHECK(again.code == 2);
  CHECK(has(again.err, "has a run already"));
}

TEST_CASE("the report is one file that fetches nothing, and no text in it is markup") {
  const TinyModel m;
  const std::string run = m.folder.path("run");
  const std::string arm = m.folder.write("a<b>&\"c.toml", "[cache]\nblock_size = 16\n");
  REQUIRE(run_kvasir({"ab", "-m", m.path, arm, "streaming", "--task", "passkey,mqar", "--length",
                      "256,400", "-n", "3", "--quick", "-o", run})
              .code == 0);
  const std::string html = read_bytes(run + "/report.html");
  CHECK(has(html, "a&lt;b&gt;&amp;&quot;c"));
  CHECK_FALSE(has(html, "a<b>"));
  for (const char* outside : {"http://", "https://", "<script", "url(", "@import", "src="})
    CHECK_FALSE(has(html, outside));
  CHECK(has(html, "prefers-color-scheme:dark"));
  // Opened elements are closed, in order.
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    REQUIRE(end != std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (tag[0] == '!' || tag.back() == '/' || name == "meta" || name == "link") continue;
    if (tag[0] != '/') {
      open.push_back(name);
      continue;
    }
    REQUIRE_FALSE(open.empty());
    CHECK("/" + open.back() == name);
    open.pop_back();
  }
  CHECK(open.empty());
}

TEST_CASE("depths that were asked for have a column each") {
  const TinyModel m;
  const std::string run = m.folder.path("run");
  REQUIRE(run_kvasir({"ab", "-m", m.path, "streaming", "--set", "cache.block_size=16", "--task",
                      "needle", "--length", "256,400", "--depths", "0,30,100", "-n", "4", "--quick",
                      "--no-ladder", "-o", run})
              .code == 0);
  const Json report = report_of(run);
  CHECK(report["depths"] == Json({0.0, 0.3, 1.0}));
  REQUIRE(report["cells"].size() == 4);
  for (const Json& cell : report["cells"]) {
    REQUIRE(cell["by_depth"].size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(cell["by_depth"][i]["samples"] == (i == 0 ? 2 : 1));
  }
  const std::string html = read_bytes(run + "/report.html");
  CHECK(has(html, "<th scope=\"col\">0</th><th scope=\"col\">30</th><th scope=\"col\">100</th>"));
}

TEST_CASE("ab diff pairs the samples of two runs") {
  const TinyModel m;
  MadeUpRun before(m), after(m);
  const std::string half = std::string(20, '1') + std::string(20, '0');
  before.write(half, half, half);
  after.write(half, std::string(40, '0'), std::string(40, '1'));
  const Json rows = json_of({"ab", "diff", before.path(), after.path(), "--json"})["rows"];
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["verdict"] == "same");
  CHECK(rows[1]["lost"] == 20);
  CHECK(rows[1]["won"] == 0);
  CHECK(rows[1]["verdict"] == "worse");
  CHECK(rows[2]["won"] == 20);
  CHECK(rows[2]["right_first"] == 20);
  CHECK(rows[2]["right_second"] == 40);
  CHECK(rows[2]["verdict"] == "better");
  CHECK_FALSE(has(run_kvasir({"ab", "diff", before.path(), after.path()}).out, "suspicious"));
  CHECK(run_kvasir({"ab", "diff", before.path(), m.folder.path("none")}).code == 2);
  // What failed stands there with its reason, without a verdict.
  std::string failed = MadeUpRun::line(40, "snapkv", '0');
  failed.replace(failed.find(",\"snapkv\",0,"), 12, ",\"snapkv\",1,");
  after.write(half, half, half,
              MadeUpRun::line(40, "dense", '1') + MadeUpRun::line(40, "streaming", '1') + failed);
  const Json diff = json_of({"ab", "diff", before.path(), after.path(), "--json"});
  CHECK(diff["rows"].size() == 2);
  CHECK(diff["failed_second"].contains("snapkv"));
  CHECK(has(run_kvasir({"ab", "diff", before.path(), after.path()}).out, "Failed after: snapkv"));
}

TEST_CASE("a reader that has seen enough ends ab without a word") {
  const TinyModel m;
  const Finished done =
      run_shell("kvasir ab -m " + m.path +
                " streaming --set cache.block_size=16 --task passkey --length 256 "
                "-n 1 --quick --json -o " +
                m.folder.path("run") + " | true");
  CHECK(done.code == 0);
  CHECK_FALSE(has(done.err, "error"));
  CHECK_FALSE(has(done.err, "signal"));
}

TEST_CASE("ab diff says what a strategy of the same name configures otherwise") {
  const TinyModel m;
  const auto run = [&](const std::string& window) {
    const std::string folder = m.folder.path(window);
    REQUIRE(run_kvasir({"ab", "-m", m.path, "streaming", "--set", "cache.block_size=16", "--set",
                        "cache.window_tokens=" + window, "--task", "passkey", "--length", "256",
                        "-n", "1", "--quick", "-o", folder})
                .code == 0);
    return folder;
  };
  const std::string narrow = run("16"), wide = run("48");
  CHECK(has(run_kvasir({"ab", "diff", narrow, wide}).out,
            "streaming: cache.window_tokens 16, then 48"));
}

TEST_CASE("mistakes are said in a sentence, before anything runs") {
  const TinyModel m;
  const auto says = [&](const Words& words, const std::string& what) {
    const Finished done = run_kvasir(Words{"ab", "-m", m.path, "-o", m.folder.path("no")} + words);
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(has(done.err, what));
    CHECK_FALSE(std::filesystem::exists(m.folder.path("no")));
  };
  says({}, "no arm: name strategies");
  says({"quset"}, "did you mean the preset \"quest\"?");
  says({"quest", "--task", "pasky"}, "unknown task 'pasky'");
  says({"quest", "quest"}, "two arms are called \"quest\"");
  says({"dense"}, "dense attention always takes part");
  says({"quest", "--lenght", "4K"}, "did you mean '--length'?");
  says({"quest", "--sweep", "selector.budget_tokens"}, "expected key=value,value");
  says({"quest", "--sweep", "a=1,1"}, "with different values");
  says({"quest", "--sweep", "selector.no_such=1,2"}, "no_such");
  says({"quest", "--length", "20"}, "20");
  says({"quest", "--length", "1K,1024"}, "names one of them twice");
  says({"quest", "--task", "passkey,passkey"}, "names one of them twice");
  says({"quest", "-n", "0"}, "-n must be above 0");
  says({"quest", "--questions", "2"}, "passkey asks 1 about a context");
  says({"quest", "--task", "kv_retrieval", "--questions", "2", "--queries", "3"},
       "leave out --queries 3");
  says({"quest", "--parallel", "0"}, "--parallel");
  says({"quest", "--fail-if", "bad"}, "--fail-if");
  says({"quest", "show", m.folder.path("nothing")}, "ab show takes no");
  const Finished nothing = run_kvasir({"ab", "show", m.folder.path("nothing")});
  CHECK(nothing.code == 2);
  CHECK(has(nothing.err, "no run_meta.json there"));
}

TEST_SUITE_END();
