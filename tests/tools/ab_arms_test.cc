// kvasir ab and its arms: those that fail, fail alone; those that chose nothing are named; what
// ends a run, and with which code.
// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/ab_run.h"

namespace {

using namespace kvasir::test;
using Json = nlohmann::json;

const std::string kFakes = KVASIR_BINARY_DIR "/test-plugins/fake";

// A sanitizer ends the process in its own way.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

TEST_SUITE_BEGIN("tools/ab_arms");

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
  const Json report = report_of(together);
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
  const Json by_itself = report_of(alone);
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

// The model of models/ finds pass keys in its first layers, which Quest's preset leaves dense.
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
