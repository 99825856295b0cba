// A process that is killed while it saves leaves no half-written file under its final name, and
// nothing wrong is loaded afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/effort.h"
#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;

// Of the system's clock, so that each run of the tests tries other moments.
uint32_t some_number() {
  static uint64_t state =
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

// Between 40 % and 120 % of the time that the command takes: it saves near its end.
void kill_near_end(const std::vector<std::string>& arguments, std::chrono::microseconds whole) {
  RunningKvasir kvasir(arguments);
  const auto percent = 40 + some_number() % 80;
  std::this_thread::sleep_for(whole * percent / 100);
}

int n_kills() { return few_cases() ? 20 : 200; }

template <class Run>
std::chrono::microseconds duration_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               begin);
}

}  // namespace

TEST_SUITE_BEGIN("tools/kill");

TEST_CASE("a prompt cache is whole or not there, whenever its writer is killed") {
  const TinyModel m;
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 900; ++i) text.append(" ").append(std::to_string(i));
  const std::string prompt = folder.write("prompt", text), cache = folder.path("cache.kv");
  const std::vector<std::string> command = {"run", "-m", m.path, "-f",     prompt, "-n",
                                            "4",   "-c", "4096", "--temp", "0",    "--prompt-cache",
                                            cache};
  Finished whole;
  const auto takes = duration_of([&] { whole = run_kvasir(command); });
  REQUIRE_MESSAGE(whole.code == 0, whole.err);
  int n_whole = 0;
  for (int i = 0; i < n_kills(); ++i) {
    std::filesystem::remove(cache);
    kill_near_end(command, takes);
    if (!std::filesystem::exists(cache)) continue;
    ++n_whole;
    const Finished loaded = run_kvasir(command);
    CAPTURE(loaded.err);
    CHECK(loaded.code == 0);
    CHECK(loaded.out == whole.out);
    CHECK(loaded.err.find("prefill 0 tokens") != std::string::npos);
  }
  MESSAGE(n_whole << " caches were whole, the others not there");
}

TEST_CASE("a file of -o is whole or not there, whenever its writer is killed") {
  const TinyModel m;
  const TempDir folder;
  const std::string gguf = folder.path("big.gguf");
  const std::vector<std::string> command = {"model", "random", "tiny-llama-test", "--layers", "60",
                                            "-o",    gguf,     "--force"};
  const auto takes = duration_of([&] { REQUIRE(run_kvasir(command).code == 0); });
  const std::string whole = read_bytes(gguf);
  for (int i = 0; i < n_kills(); ++i) {
    std::filesystem::remove(gguf);
    kill_near_end(command, takes);
    if (std::filesystem::exists(gguf)) CHECK(read_bytes(gguf) == whole);
    for (const std::string& left : folder.list())  // .partial-PID of who was killed
      if (left != "big.gguf") std::filesystem::remove(folder.path(left));
  }
}

TEST_SUITE_END();
