// kvasir ab --resume: a run that was ended at any time goes on to what it would have been.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/effort.h"
#include "tests/tools/ab_run.h"

namespace {

using namespace kvasir::test;
using Clock = std::chrono::steady_clock;

// Runs that are ended again and again: $KVASIR_TEST_ENDED_RUNS says how many where it is set.
int n_ended_runs() {
  if (const char* n = std::getenv("KVASIR_TEST_ENDED_RUNS")) return std::atoi(n);
  return few_cases() ? 1 : 3;
}

// Ends a run by SIGINT or SIGKILL at moments of its choice, of the clock, until one of its
// processes comes to the end.
class Ender {
 public:
  // takes: the time of the whole run, undisturbed.
  explicit Ender(std::chrono::microseconds takes)
      : takes_(takes), state_(static_cast<uint64_t>(Clock::now().time_since_epoch().count())) {}

  void run(const Words& begin, const std::string& folder) {
    while (!std::filesystem::exists(folder + "/report.md")) {
      const bool begun = std::filesystem::exists(folder + "/run_meta.json");
      RunningKvasir kvasir(begun ? Words{"ab", "--resume", folder} : begin);
      std::this_thread::sleep_for(takes_ * (draw() % 50) / 100);
      if (draw() % 2 == 0 && kvasir.catches_interrupts()) {
        kvasir.interrupt();
        const Finished done = kvasir.finish();
        CAPTURE(done.err);
        CHECK((done.code == 130 || done.code == 0));
        ++n_interrupts;
      } else {
        ++n_kills;  // by the destructor
      }
    }
  }
  int n_interrupts = 0, n_kills = 0;  // of processes that had ended by then, too

 private:
  uint32_t draw() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  std::chrono::microseconds takes_;
  uint64_t state_;
};

}  // namespace

TEST_SUITE_BEGIN("tools/ab_resume");

TEST_CASE("a run ended at any time by SIGINT or SIGKILL goes on to what it would have been") {
  const TinyModel m;
  const std::string whole = m.folder.path("whole"), ended = m.folder.path("ended");
  const auto command = [&](const std::string& folder) {
    return Words{
        "ab",     "-m",           m.path,     "streaming", "snapkv", "--set", "cache.block_size=16",
        "--task", "passkey,mqar", "--length", "200,300",   "-n",     "25",    "--quick",
        "-o",     folder};
  };
  const auto begin = Clock::now();
  REQUIRE(run_kvasir(command(whole)).code == 0);
  Ender ender(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin));
  const std::string records = without_times(read_bytes(whole + "/predictions.csv"));
  int n_equal = 0;
  for (int i = 0; i < n_ended_runs(); ++i) {
    std::filesystem::remove_all(ended);
    ender.run(command(ended), ended);
    const bool same_records = without_times(read_bytes(ended + "/predictions.csv")) == records;
    CHECK(same_records);
    const Finished last = run_kvasir({"ab", "--resume", ended});
    CAPTURE(last.err);
    CHECK(last.code == 0);
    const bool same_report = without_times(report_of(ended)) == without_times(report_of(whole));
    CHECK(same_report);
    n_equal += same_records && same_report;
  }
  MESSAGE(n_equal << " of " << n_ended_runs() << " runs are what they would have been, after "
                  << ender.n_interrupts << " interrupts and " << ender.n_kills << " kills");
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

TEST_SUITE_END();
