// kvasir chat on a pseudo-terminal: a document read once, Ctrl-C, /reset, Ctrl-D.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "tests/tools/process.h"

namespace {

using kvasir::test::run_kvasir;
using kvasir::test::TempDir;

// Runs the program on a pseudo-terminal and reads its output until a wanted text appears.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), kvasir::test::kvasir_binary());
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    child_ = forkpty(&master_, nullptr, nullptr, nullptr);
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(master_);
  }
  void type(const std::string& text) {
    REQUIRE(write(master_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // Returns the output up to the end of `wanted`, or "" when it did not come within a minute.
  std::string until(const std::string& wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      const size_t at = said_.find(wanted);
      if (at != std::string::npos) {
        std::string out = said_.substr(0, at + wanted.size());
        said_.erase(0, out.size());
        return out;
      }
      pollfd ready{master_, POLLIN, 0};
      if (std::chrono::steady_clock::now() > end || poll(&ready, 1, 1000) < 0) return "";
      if (!(ready.revents & (POLLIN | POLLHUP))) continue;
      char bytes[4096];
      const ssize_t n = read(master_, bytes, sizeof bytes);
      if (n <= 0) return "";
      said_.append(bytes, static_cast<size_t>(n));
    }
  }
  int wait() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int master_ = -1;
  pid_t child_ = -1;
  std::string said_;
};

// The number before `unit` in a report such as "[93 tokens kept in the cache, 12 prefilled …".
long number_before(const std::string& text, const std::string& unit) {
  size_t end = text.find(unit);
  if (end == std::string::npos) return -1;
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  return std::atol(text.substr(begin, end - begin).c_str());
}

struct Fixture {
  TempDir folder;
  std::string model = folder.path("m.gguf"), document;
  Fixture() {
    REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--context", "65536", "-o", model})
                .code == 0);
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Fact " + std::to_string(i) + " is a fact.\n";
    document = folder.write("document.txt", text);
  }
};

TEST_CASE("the document is prefilled once, a turn prefills only what it adds") {
  const Fixture f;
  Terminal t({"chat", "-m", f.model, "-f", f.document, "--chat-template", "chatml", "-n", "5",
              "--ignore-eos", "--temp", "0"});
  const std::string greeting = t.until("> ");
  const long document = number_before(greeting, " tokens read");
  CHECK(document > 200);
  t.type("First question?\n");
  const std::string first = t.until("]\r\n");
  CHECK(number_before(first, " tokens kept") == document);
  CHECK(number_before(first, " prefilled") < 60);
  t.until("> ");
  t.type("Second question?\n");
  const std::string second = t.until("]\r\n");
  // What the first turn left: its prompt, and the answer but for the last token.
  CHECK(number_before(second, " tokens kept") == document + number_before(first, " prefilled") + 4);
  CHECK(number_before(second, " prefilled") < 60);
  t.until("> ");
  t.type("/reset\n");
  t.until("> ");
  t.type("First question?\n");
  const std::string again = t.until("]\r\n");
  CHECK(number_before(again, " tokens kept") == document);
  CHECK(number_before(again, " prefilled") == number_before(first, " prefilled"));
  t.until("> ");
  t.type("/exit\n");
  CHECK(t.wait() == 0);
}

TEST_CASE("Ctrl-C stops the answer and not the program; Ctrl-D ends it") {
  const Fixture f;
  Terminal t({"chat", "-m", f.model, "--chat-template", "chatml", "-n", "1000000", "-c", "60000",
              "--ignore-eos", "--temp", "0"});
  CHECK(t.until("> ") != "");
  t.type("Talk on.\n");
  CHECK(t.until("\r\n") != "");  // the echo of the line
  usleep(400000);
  t.type("\x03");
  CHECK(t.until("interrupted]") != "");
  CHECK(t.until("> ") != "");
  t.type("\x03");  // with no answer to stop
  CHECK(t.until("/exit") != "");
  t.type("/nonsense\n");
  CHECK(t.until("/reset and /exit") != "");
  t.type("\x04");
  CHECK(t.wait() == 0);
}

TEST_CASE("a model without a chat template continues plain text, and says so") {
  const Fixture f;
  std::string bytes = kvasir::test::read_bytes(f.model);
  const std::string key = "tokenizer.chat_template";
  REQUIRE(bytes.find(key) != std::string::npos);
  bytes.replace(bytes.find(key), key.size(), "tokenizer.chat_tempest_");
  const std::string mute = f.folder.write("mute.gguf", bytes);
  Terminal t({"chat", "-m", mute, "-n", "3", "--ignore-eos"});
  CHECK(t.until("no chat template") != "");
  t.until("> ");
  t.type("Once upon\n");
  CHECK(t.until("3 generated") != "");
  t.type("/exit\n");
  CHECK(t.wait() == 0);
}

}  // namespace
