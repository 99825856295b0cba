// Each call that writes fails once, in a run of its own: what is left is whole or not there, the
// command says so, and the next one goes right.
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <filesystem>

#include "tests/tools/faults.h"
#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Arguments = std::vector<std::string>;

constexpr const char* kWrites = "create,write,cut,sync,close,rename";
constexpr const char* kFull = "No space left on device; free space or choose another folder";

struct Files {
  TinyModel model;
  TempDir folder;  // of the output alone
  std::string out = folder.path("out");
  std::string text = model.folder.write("text", long_text());
  std::string yaml = model.folder.write("kt.yaml", "long_context:\n  second_select_num: 96\n");

  static std::string long_text() {
    std::string words;
    for (int i = 0; i < 100; ++i) words.append(" ").append(std::to_string(i));
    return words;
  }
  // A command that has -o, without it.
  std::vector<Arguments> with_output() const {
    const auto generate = [&](const std::string& format) {
      return Arguments{"task",     "generate", "-m", model.path, "--task",   "passkey",
                       "--length", "300",      "-n", "2",        "--format", format};
    };
    return {{"model", "random", "tiny-llama-test", "--layers", "1"},
            {"model", "quantize", model.path, "--type", "q8_0"},
            {"model", "logits", "-m", model.path, "-p", "hello"},
            {"model", "skew", "-m", model.path, "-f", text},
            {"model", "skew", "-m", model.folder.path("flat.gguf"), "-f", text, "--fold"},
            generate("jsonl"),
            generate("text"),
            generate("ids"),
            {"config", "import", yaml}};
  }
  Arguments evaluation() const {
    return {"task",     "eval", "-m", model.path, "--task", "passkey",
            "--length", "300",  "-n", "2",        "-o",     out};
  }
  Arguments run(const Arguments& more) const {
    Arguments all = {"run", "-m", model.path, "-f", text, "-n", "4", "--temp", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

Arguments operator+(Arguments list, const Arguments& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::string text_of(const Arguments& arguments) {
  std::string text;
  for (const std::string& word : arguments) text += word + " ";
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("tools/write_faults");

TEST_CASE("a full disk at any call leaves no file of -o, or the old one") {
  if (!can_inject_faults()) return;
  const Files f;
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--layers", "1", "--no-rope", "-o",
                      f.model.folder.path("flat.gguf")})
              .code == 0);
  for (const Arguments& command : f.with_output()) {
    CAPTURE(text_of(command));
    const Arguments write = command + Arguments{"-o", f.out};
    const int n = fail_each("enospc", kWrites, f.folder.root(), write, [&](const Faulted& done) {
      CHECK(done.code == 2);
      CHECK(done.says(f.out + ": cannot be "));
      CHECK(done.says(kFull));
      CHECK(f.folder.list().empty());
    });
    CHECK(n >= 5);  // made, written, brought to the disk, closed, renamed
    const std::string whole = read_bytes(f.out);
    CHECK(whole.size() > 100);
    f.folder.write("out", "old");
    fail_each("eio", kWrites, f.folder.root(), write + Arguments{"--force"},
              [&](const Faulted& done) {
                CHECK(done.code == 2);
                CHECK(done.says(f.out + ": cannot be "));
                CHECK(done.says("Input/output error; check"));
                CHECK(read_bytes(f.out) == "old");
                CHECK(f.folder.list().size() == 1);
              });
    CHECK(read_bytes(f.out) == whole);
    MESSAGE(text_of(command) << n << " calls");
    std::filesystem::remove(f.out);
  }
}

TEST_CASE("calls that do a half, or come back early, change no byte of a file") {
  if (!can_inject_faults()) return;
  const Files f;
  REQUIRE(run_kvasir({"model", "random", "tiny-llama-test", "--layers", "1", "--no-rope", "-o",
                      f.model.folder.path("flat.gguf")})
              .code == 0);
  std::vector<Arguments> commands = f.with_output();
  commands.push_back(f.run({"--prompt-cache"}));
  for (Arguments command : commands) {
    CAPTURE(text_of(command));
    if (command[0] != "run") command.emplace_back("-o");
    command.push_back(f.out);
    REQUIRE(run_kvasir(command).code == 0);
    const std::string whole = read_bytes(f.out);
    for (const Fault& fault : {Fault{"short", "write"}, Fault{"eintr", "write,sync,close"}}) {
      std::filesystem::remove(f.out);
      const Faulted done = run_with(fault, f.folder.root(), command);
      CAPTURE(done.err);
      CHECK(done.code == 0);
      CHECK(done.hits.size() > 2);
      CHECK(read_bytes(f.out) == whole);
      CHECK(f.folder.list().size() == 1);
    }
    std::filesystem::remove(f.out);
  }
}

TEST_CASE("lines that grow are whole lines, whichever call fails") {
  if (!can_inject_faults()) return;
  const Files f;
  REQUIRE(run_kvasir(f.evaluation()).code == 0);
  const std::string whole = read_bytes(f.out);
  const int n = fail_each("enospc", "create,write,close", f.folder.root(),
                          f.evaluation() + Arguments{"--force"}, [&](const Faulted& done) {
                            CHECK(done.code == 2);
                            CHECK(done.says("-o " + f.out + ": cannot be written: " + kFull));
                            const std::string kept = read_bytes(f.out);
                            CHECK((kept.empty() || kept.ends_with("}\n")));
                          });
  CHECK(n == 4);
  for (const char* kind : {"short", "eintr"}) {
    const Faulted done =
        run_with({kind, "write"}, f.folder.root(), f.evaluation() + Arguments{"--force"});
    CHECK(done.code == 0);
    CHECK(read_bytes(f.out).size() == whole.size());
  }
}

TEST_CASE("a prompt that cannot be kept is answered, and the command fails") {
  if (!can_inject_faults()) return;
  const Files f;
  const Arguments command = f.run({"--prompt-cache", f.out});
  const Finished whole = run_kvasir(f.run({}));
  REQUIRE(whole.code == 0);
  int n_answered = 0;
  const int n = fail_each("enospc", "create,write,sync,rename", f.folder.root(), command,
                          [&](const Faulted& done) {
                            CHECK(done.code == 2);
                            CHECK(done.says("error: --prompt-cache " + f.out + ": cannot be "));
                            CHECK(done.says(kFull));
                            CHECK(f.folder.list().empty());
                            if (done.out.empty()) return;  // it was tried before anything was read
                            CHECK(done.out == whole.out);
                            ++n_answered;
                          });
  CHECK(n_answered == n - 1);
  const Finished again = run_kvasir(command);  // the last run kept it
  CHECK(again.code == 0);
  CHECK(again.out == whole.out);
  CHECK(again.err.find("prefill 0 tokens") != std::string::npos);
}

TEST_CASE("where the disk is full, tiered goes on in memory and answers the same") {
  if (!can_inject_faults()) return;
  const TieredRun f;
  const Arguments& command = f.command;
  const Finished whole = run_kvasir(command);
  REQUIRE(whole.code == 0);
  const int n_made =
      fail_each("enospc", "create", f.folder.root(), command, [&](const Faulted& done) {
        CHECK(done.code == 2);
        CHECK(done.says("no file can be made in " + f.folder.root().string() +
                        ": No space left on device; set folder"));
      });
  CHECK(n_made >= 1);
  const auto goes_on = [&](const Faulted& done) {
    CHECK(done.code == 0);
    CHECK(done.out == whole.out);
    CHECK(
        done.says("warning: kvasir.tiered: blocks stay in memory, beyond cached_blocks: the "
                  "file in " +
                  f.folder.root().string() + " takes no more (No space left on device)"));
  };
  const int n = fail_each("enospc", "write", f.folder.root(), command, goes_on, {}, 24);
  CHECK(n >= 4);
  MESSAGE(n << " writes");
  for (const char* from : {"1+", "2+", "4+"}) {
    const Faulted done = run_with({"enospc", "write", from}, f.folder.root(), command);
    CAPTURE(done.err);
    REQUIRE(!done.hits.empty());
    goes_on(done);
  }
  for (const Fault& fault : {Fault{"short", "write,read"}, Fault{"eintr", "write,read"},
                             Fault{"eopnotsupp", "create"}}) {
    CAPTURE(fault.kind);
    const Faulted done = run_with(fault, f.folder.root(), command);
    CHECK(done.code == 0);
    CHECK(!done.hits.empty());
    CHECK(done.out == whole.out);
    CHECK(!done.says("warning"));
  }
  CHECK(f.folder.list().empty());
}

TEST_CASE("what kvasir keeps for itself may be lost, and is never half read") {
  if (!can_inject_faults()) return;
  const Files f;
  const Arguments command = f.run({"--prompt-cache", f.model.folder.path("prompt.kv")});
  const Arguments cache = {"XDG_CACHE_HOME=" + f.folder.root().string()};
  Finished whole = run_kvasir(command, cache);
  REQUIRE(whole.code == 0);
  REQUIRE(f.folder.list() == Arguments{"kvasir"});
  const auto same = [&](const Faulted& done) {
    CHECK(done.code == 0);
    CHECK(done.out == whole.out);
    std::filesystem::remove_all(f.folder.path("kvasir"));
  };
  std::filesystem::remove_all(f.folder.path("kvasir"));
  CHECK(fail_each("enospc", "mkdir,create,write,sync,close,rename", f.folder.root(), command, same,
                  cache) >= 6);
  REQUIRE(run_kvasir(command, cache).code == 0);
  for (const char* kind : {"eio", "short", "eintr", "flip"}) {
    const Faulted done = run_with({kind, "read"}, f.folder.root(), command, cache);
    CHECK(done.code == 0);
    CHECK(!done.hits.empty());
    CHECK(done.out == whole.out);
  }
}

TEST_CASE("the list of refused plugins stays whole when it cannot be read or written") {
  if (!can_inject_faults()) return;
  const TempDir folder;
  const auto line = [](const std::string& id) {
    return "1 2 3 4 5 6 7 SIGSEGV select " + id + " /no/" + id + ".so\n";
  };
  const std::string all = line("org.example.a") + line("org.example.b");
  const std::string list = folder.write("kvasir/blocked-plugins", all);
  const Arguments cache = {"XDG_CACHE_HOME=" + folder.root().string()};
  const Arguments command = {"plugin", "unblock", "org.example.a"};
  const auto stays = [&](const Faulted& done) {
    CHECK(done.code == 2);
    CHECK(done.says(list + ": cannot be "));
    CHECK(read_bytes(list) == all);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path("kvasir")), {}) == 1);
  };
  CHECK(fail_each("enospc", kWrites, folder.root(), command, stays, cache) >= 5);
  CHECK(read_bytes(list) == line("org.example.b"));
  folder.write("kvasir/blocked-plugins", all);
  CHECK(fail_each("eio", "read", folder.root(), command, stays, cache) >= 2);
  CHECK(read_bytes(list) == line("org.example.b"));
}

TEST_SUITE_END();
