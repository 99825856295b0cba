// kvasir ab as its users meet it: verdicts, run folders that outlive kills, arms that fail alone.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/effort.h"
#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kFakes = KVASIR_BINARY_DIR "/test-plugins/fake";

// A sanitizer ends the process in its own way.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Records but for their times, which are the last two columns and no run's of another.
std::string without_times(const std::string& csv) {
  std::istringstream lines(csv);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    for (int i = 0; i < 2; ++i) line.erase(line.rfind(','));
    out += line + "\n";
  }
  return out;
}

Json without_times(Json report) {
  for (Json& cell : report["cells"]) {
    cell.erase("prefill_speedup");
    cell.erase("decode_speedup");
  }
  return report;
}

Json metrics_of(const std::string& run) {
  return without_times(Json::parse(read_bytes(run + "/metrics.json")));
}

// The cell of a strategy: of the first task and length.
Json cell_of(const Json& report, const std::string& strategy) {
  for (const Json& cell : report["cells"])
    if (cell["strategy"] == strategy) return cell;
  FAIL("no cell of " << strategy);
  return {};
}

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
           ",5," + (right == '1' ? "5" : "2") + ",0.5,6,5,0.25,200,7,1000,90,100,4000,10,0," +
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

TEST_CASE("a run killed at any time goes on to what it would have been") {
  const TinyModel m;
  const std::string whole = m.folder.path("whole"), killed = m.folder.path("killed");
  const auto command = [&](const std::string& folder) {
    return Words{
        "ab",     "-m",           m.path,     "streaming", "snapkv", "--set", "cache.block_size=16",
        "--task", "passkey,mqar", "--length", "200,300",   "-n",     "25",    "--quick",
        "-o",     folder};
  };
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(run_kvasir(command(whole)).code == 0);
  const auto takes = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  uint64_t state = static_cast<uint64_t>(begin.time_since_epoch().count());
  const auto any_share = [&] {  // of the time that all takes, up to a half
    state = state * 6364136223846793005u + 1442695040888963407u;
    return takes * static_cast<int>((state >> 33) % 50) / 100;
  };
  int n_kills = 0, n_runs = 0;
  const auto enough = [&] {
    return n_kills >= (few_cases() ? 5 : 50) ||
           (n_runs > 0 && std::chrono::steady_clock::now() - begin > std::chrono::seconds(20));
  };
  for (; !enough(); ++n_runs) {
    std::filesystem::remove_all(killed);
    for (bool finished = false; !finished;) {
      const bool begun = std::filesystem::exists(killed + "/run_meta.json");
      RunningKvasir kvasir(begun ? Words{"ab", "--resume", killed} : command(killed));
      std::this_thread::sleep_for(any_share());
      if (n_kills % 3 == 0 && kvasir.catches_interrupts()) {
        kvasir.interrupt();
        const Finished done = kvasir.finish();
        CAPTURE(done.err);
        CHECK((done.code == 130 || done.code == 0));
      }
      ++n_kills;
      finished = std::filesystem::exists(killed + "/report.md");
    }
    CHECK(without_times(read_bytes(killed + "/predictions.csv")) ==
          without_times(read_bytes(whole + "/predictions.csv")));
    const Finished last = run_kvasir({"ab", "--resume", killed});
    CAPTURE(last.err);
    CHECK(last.code == 0);
    CHECK(metrics_of(killed) == metrics_of(whole));
  }
  MESSAGE(n_kills << " kills in " << n_runs << " runs");
}

TEST_CASE("a run goes on as it was declared, or not at all") {
  const TinyModel m;
  const std::string run = m.folder.path("run");
  const std::string arm = m.folder.write("arm.toml", "[cache]\nblock_size = 16\n");
  REQUIRE(run_kvasir({"ab", "-m", m.path, arm, "--task", "passkey", "--length", "256", "-n", "2",
                      "--quick", "-o", run})
              .code == 0);
  const Finished other = run_kvasir({"ab", "--resume", run, "--length", "512"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "leave out --length 512"));
  CHECK(has(run_kvasir({"ab", "--resume", run, "-o", m.folder.path("x")}).err, "leave out -o"));
  const std::string meta = read_bytes(run + "/run_meta.json");
  std::string rebuilt = meta;
  const size_t hash = rebuilt.find("\"xxh3\": \"") + 9;
  rebuilt.replace(hash, 16, "0123456789abcdef");
  std::ofstream(run + "/run_meta.json") << rebuilt;
  const Finished replaced = run_kvasir({"ab", "--resume", run});
  CAPTURE(replaced.err);
  CHECK(replaced.code == 2);
  CHECK(has(replaced.err, "the run began with another build of"));
  std::ofstream(run + "/run_meta.json") << meta;
  m.folder.write("arm.toml", "[cache]\nblock_size = 32\n");
  const Finished changed = run_kvasir({"ab", "--resume", run});
  CHECK(changed.code == 2);
  CHECK(has(changed.err, "block_size is \"16\" there and \"32\" now"));
}

TEST_CASE("an arm that crashes, hangs or returns nonsense fails by name, the others finish") {
  if (kSanitized) return;
  const TinyModel m;
  const auto arm = [&](const std::string& name, const std::string& selector) {
    return m.folder.write(
        name + ".toml", "[cache]\nblock_size = 16\n[selector]\nplugin = 'kvasir.test." + selector);
  };
  const Words arms = {
      arm("segv", "crash_selector'\nhow = 'segv'\nwhere = 'select'\n"),
      arm("hang", "crash_selector'\nhow = 'hang'\nwhere = 'select'\n"),
      arm("leaves", "crash_selector'\nhow = 'exit'\nwhere = 'create'\n"),
      arm("throws", "crash_selector'\nhow = 'throw'\nwhere = 'bind'\n"),
      arm("range", "bad_selector'\nfault = 'out_of_range'\n"),
      arm("late", "bad_selector'\nfault = 'unsorted'\nfrom_call = 40\n"),
      m.folder.write("scores.toml",
                     "[cache]\nblock_size = 16\n[selector]\nplugin = 'kvasir.block_topk'\n"
                     "budget_tokens = 32\n[representative]\n"
                     "plugin = 'kvasir.test.bad_representative'\nfault = 'nan_score'\n")};
  const Words task = {"--set",    "cache.window_tokens=32",
                      "--task",   "passkey",
                      "--length", "256",
                      "-n",       "6",
                      "--quick",  "--patience",
                      "2",        "--plugin-dir",
                      kFakes};
  const std::string alone = m.folder.path("alone"), together = m.folder.path("together");
  REQUIRE(run_kvasir(Words{"ab", "-m", m.path, "streaming", "-o", alone} + task).code == 0);
  const Finished done =
      run_kvasir(Words{"ab", "-m", m.path, "streaming", "-o", together} + arms + task);
  CAPTURE(done.err);
  CHECK(done.code == 4);
  const Json report = Json::parse(read_bytes(together + "/metrics.json"));
  const auto why = [&](const std::string& label) {
    const Json cell = cell_of(report, label);
    CHECK(cell["verdict"].is_null());
    return cell["failed"].is_string() ? cell["failed"].get<std::string>() : "";
  };
  CHECK(has(why("segv"), "SIGSEGV in plugin kvasir.test.crash_selector"));
  CHECK(has(why("segv"), "select, layer 0"));
  CHECK(has(why("hang"), "select, layer 0 did not return within 2 s"));
  CHECK(has(why("leaves"), "exit() in plugin kvasir.test.crash_selector"));
  CHECK(has(why("throws"), "SIGABRT"));
  CHECK(has(why("range"), "lies outside the candidate range"));
  CHECK(has(why("late"), "not ascending and unique"));
  CHECK(has(why("scores"), "a score is not finite"));
  CHECK(cell_of(report, "oracle of scores")["samples"] == 6);
  for (const char* label : {"segv", "hang", "leaves", "throws", "range", "late", "scores"})
    CHECK(has(done.out, std::string(label) + " failed: "));
  const Json by_itself = Json::parse(read_bytes(alone + "/metrics.json"));
  for (const char* label : {"dense", "streaming"}) {
    const Json here = cell_of(report, label), there = cell_of(by_itself, label);
    CHECK(here["samples"] == 6);
    for (const char* key : {"right", "answer_tokens_right", "attended_percent", "mean_kl"})
      CHECK(here[key] == there[key]);
  }
  // What failed has failed when the run goes on, too.
  const Finished again = run_kvasir({"ab", "--resume", together});
  CHECK(again.code == 4);
  CHECK(again.out == done.out);
}

// The model of models/ finds pass keys in its first layers, which Quest's preset leaves dense.
TEST_CASE("an arm that leaves without a word fails, and so do rungs that share its faults") {
  if (kSanitized) return;
  const TinyModel m;
  const std::string leaves =
      m.folder.write("leaves.toml",
                     "[cache]\nblock_size = 16\n[selector]\nplugin = 'kvasir.test.crash_selector'\n"
                     "how = '_exit'\nwhere = 'select'\n");
  const std::string trap = m.folder.write(
      "trap.toml",
      "[cache]\nblock_size = 16\n[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 32\n"
      "[representative]\nplugin = 'kvasir.minmax'\n"
      "[attention]\nplugin = 'kvasir.test.bad_attention'\nfault = 'trap'\n");
  const Finished done =
      run_kvasir({"ab", "-m", m.path, leaves, trap, "--set", "cache.window_tokens=32", "--task",
                  "passkey", "--length", "256", "-n", "3", "--quick", "--plugin-dir", kFakes,
                  "--json", "-o", m.folder.path("run")});
  CAPTURE(done.err);
  REQUIRE(done.code == 4);
  const Json report = Json::parse(done.out);
  CHECK(has(cell_of(report, "leaves")["failed"], "ended its process with code 0"));
  for (const char* label : {"trap", "oracle of trap", "random of trap"})
    CHECK(has(cell_of(report, label)["failed"], "SIGILL"));
  CHECK(cell_of(report, "dense")["samples"] == 3);
}

TEST_CASE("an arm beside which a random choice does as well has not engaged") {
  const TempDir folder;
  const std::string blocks = folder.write(
      "blocks.toml",
      "[cache]\nblock_size = 16\nwindow_tokens = 32\n[selector]\nplugin = 'kvasir.block_topk'\n"
      "[representative]\nplugin = 'kvasir.minmax'\n");
  const Finished done =
      run_kvasir({"ab", "quest", blocks, "--set", "selector.budget_tokens=64", "--task", "passkey",
                  "--length", "1024", "-n", "10", "--quick", "--json", "-o", folder.path("run")});
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  const Json report = Json::parse(done.out);
  const Json quest = cell_of(report, "quest"), topk = cell_of(report, "blocks");
  CHECK(quest["engaged"] == false);
  CHECK(has(quest["not_engaged_because"], "its sparse layers hold none of the retrieval"));
  CHECK(quest["masked_accuracy"].get<double>() >= 0.9);
  CHECK(topk["masked_accuracy"].get<double>() <= 0.5);
  CHECK(topk["engaged"] == true);
  const Finished most = run_kvasir({"ab", blocks, "--set", "selector.budget_tokens=960", "--task",
                                    "passkey", "--length", "1024", "-n", "10", "--quick", "--json",
                                    "--most-attended", "100", "-o", folder.path("most")});
  REQUIRE(most.code == 0);
  CHECK(has(cell_of(Json::parse(most.out), "blocks")["not_engaged_because"],
            "a random choice of as many tokens keeps"));
  CHECK(topk["oracle_accuracy"].get<double>() >= 0.9);
  CHECK(topk["random_accuracy"].get<double>() <= 0.5);
  CHECK(topk["lost_by_budget"].get<double>() + topk["lost_by_choice"].get<double>() ==
        doctest::Approx(-topk["difference"].get<double>()));
}

// The model of models/ answers 512 tokens with dense attention and not without most of them.
TEST_CASE("--fail-if, --stop-when and --sweep") {
  const TempDir folder;
  const Words blind = {"ab",       "streaming",
                       "--set",    "cache.window_tokens=32",
                       "--set",    "cache.block_size=16",
                       "--task",   "passkey",
                       "--length", "512",
                       "--quick"};
  const std::string options = run_kvasir({"ab", "--help"}).out;
  CHECK(has(options, "3 --fail-if holds"));
  SUBCASE("an arm that is worse") {
    const Words command =
        blind + Words{"--set", "selector.budget_tokens=32", "-n", "20", "-o", folder.path("run")};
    const Finished done = run_kvasir(command + Words{"--fail-if", "worse"});
    CAPTURE(done.err);
    CAPTURE(done.out);
    CHECK(done.code == 3);
    CHECK(has(done.out, "worse, p "));
    CHECK(run_kvasir({"ab", "--resume", folder.path("run")}).code == 0);
    CHECK(run_kvasir({"ab", "--resume", folder.path("run"), "--fail-if", "suspicious"}).code == 0);
  }
  SUBCASE("a watched run ends when it is decided") {
    const Finished done =
        run_kvasir(blind + Words{"--set", "selector.budget_tokens=32", "-n", "200", "--stop-when",
                                 "decided", "--json", "-o", folder.path("run")});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const Json report = Json::parse(done.out);
    CHECK(report["samples"].get<int>() < 60);
    const Json arm = cell_of(report, "streaming");
    CHECK(arm["verdict"] == "worse");
    CHECK(arm["difference_sequence"][1].get<double>() < 0);
  }
  SUBCASE("block and chunk sizes may be swept, whatever dense attention has") {
    for (const char* sweep : {"cache.block_size=64,16", "cache.chunk_size=512,64"}) {
      const std::string run = folder.path(std::string(sweep).substr(6, 5));
      const Finished done =
          run_kvasir({"ab", "streaming", "--task", "passkey", "--length", "512", "--quick",
                      "--sweep", sweep, "-n", "3", "--json", "-o", run});
      CAPTURE(done.err);
      REQUIRE(done.code == 0);
      const Json report = Json::parse(done.out);
      REQUIRE(report["cells"].size() == 3);
      const Json strategies =
          Json::parse(read_bytes(run + "/run_meta.json"))["declared"]["strategies"];
      const std::string key = std::string(sweep).substr(0, std::string(sweep).find('='));
      const bool blocks = key == "cache.block_size";
      CHECK(strategies[1]["configuration"][key] == (blocks ? "64" : "512"));
      CHECK(strategies[2]["configuration"][key] == (blocks ? "16" : "64"));
      CHECK(strategies[0]["configuration"][key] == (blocks ? "16" : "512"));
      // Chunks of a prompt that is read densely change no answer.
      if (!blocks)
        CHECK(report["cells"][1]["answer_tokens_right"] ==
              report["cells"][2]["answer_tokens_right"]);
    }
  }
  SUBCASE("a sweep makes an arm of each value") {
    const Finished done = run_kvasir(blind + Words{"--sweep", "selector.budget_tokens=32,448", "-n",
                                                   "20", "--json", "-o", folder.path("run")});
    CAPTURE(done.err);
    REQUIRE(done.code == 0);
    const Json report = Json::parse(done.out);
    REQUIRE(report["cells"].size() == 8);  // dense attention, two arms, two rungs of each, a mask
    const Json small = cell_of(report, "streaming 32"), large = cell_of(report, "streaming 448");
    CHECK(small["bytes_per_step"] < large["bytes_per_step"]);
    CHECK(small["right"] < large["right"]);
    CHECK(small["pareto"] == true);
    CHECK(large["pareto"] == true);
  }
}

TEST_SUITE_END();
