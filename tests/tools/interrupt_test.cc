// Ctrl-C: every command ends with 130, loses nothing that was said and leaves no half file.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;

std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words;
  for (size_t at = 0; at < command.size();) {
    const size_t end = std::min(command.find(' ', at), command.size());
    words.push_back(command.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// Each would take minutes.
std::vector<std::string> long_work(const std::string& model, const TempDir& folder) {
  std::string words;
  for (int i = 0; i < 60'000; ++i) words.append(" ").append(std::to_string(i));
  const std::string text = folder.write("text", words);
  return {"ppl -m " + model + " -f " + text + " -c 4096",
          "compare -m " + model + " -p hello -n 100000 -c 200000 -s quest",
          "bench recall -c 8192 -n 400",
          "trace record -m " + model + " -f " + text + " --layers 0 -o " + folder.path("trace"),
          "bench select -m " + model + " -f " + text + " -d 4000 -n 100000 -s quest",
          "task eval -m " + model + " --task passkey --length 3000 -n 10000 -s quest",
          "task generate -m " + model + " --task passkey --length 3000 -n 10000000 -o " +
              folder.path("samples.jsonl"),
          "model random tiny-llama-test --layers 4000 -o " + folder.path("big.gguf")};
}

}  // namespace

TEST_SUITE_BEGIN("tools/interrupt");

TEST_CASE("Ctrl-C ends long work with 130 and leaves no file") {
  const TinyModel m;
  const TempDir folder;
  for (const std::string& command : long_work(m.path, folder)) {
    CAPTURE(command);
    const auto before = folder.list();
    RunningKvasir kvasir(words_of(command));
    REQUIRE(wait_until([&] { return kvasir.catches_interrupts(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // its work has begun
    kvasir.interrupt();
    const Finished done = kvasir.finish();
    CAPTURE(done.err);
    CHECK(done.code == 130);
    CHECK(has(done.err, "kvasir: interrupted\n"));
    CHECK(folder.list() == before);
  }
}

TEST_CASE("Ctrl-C ends run's answer: what there is of it stands, with its report") {
  const TinyModel m;
  for (const bool json : {false, true}) {
    // Seconds at the least: a step behind n tokens takes a time that grows with n.
    std::vector<std::string> words = {"run",       "-m", m.path,   "-p",           "a",      "-n",
                                      "100000000", "-c", "200000", "--ignore-eos", "--temp", "0"};
    if (json) words.push_back("--json");
    RunningKvasir kvasir(words);
    REQUIRE(wait_until([&] { return json ? kvasir.catches_interrupts() : !kvasir.out().empty(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kvasir.interrupt();
    const Finished done = kvasir.finish();
    CAPTURE(done.err);
    CHECK(done.code == 130);
    CHECK(has(done.err, "kvasir: interrupted"));
    if (json)
      CHECK(nlohmann::json::parse(done.out).contains("strategy"));
    else
      CHECK(has(done.err, "timings:"));
  }
}

TEST_CASE("a second Ctrl-C ends the process at once; in chat at its prompt, too") {
  const TinyModel m;
  RunningKvasir chat({"chat", "-m", m.path, "--chat-template", "chatml"});
  REQUIRE(wait_until([&] { return chat.catches_interrupts(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  chat.interrupt();
  REQUIRE(wait_until([&] { return has(chat.err(), "Ctrl-C again, /exit or Ctrl-D ends"); }));
  chat.interrupt();
  CHECK(chat.finish().code == 130);
}

TEST_CASE("what was started with SIGINT ignored ignores it") {
  const TinyModel m;
  const Finished done = run_shell("kvasir run -m " + m.path +
                                  " -p a -n 40 --temp 0 & child=$!; sleep 0.05; kill -INT $child; "
                                  "wait $child");
  CHECK(done.code == 0);
  CHECK(has(done.err, "timings:"));
}

TEST_SUITE_END();
