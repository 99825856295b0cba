// What a command writes arrives, or the command says that it did not: full disks, closed
// descriptors, readers that went away, files that are no regular files.
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <filesystem>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
namespace fs = std::filesystem;

// Every command that prints, in few words.
std::vector<std::string> printing(const std::string& model, const TempDir& folder) {
  const std::string yaml = folder.write("kt.yaml", "long_context:\n  second_select_num: 96\n");
  const std::string text = folder.write("text", "one two three four five six seven eight nine");
  return {"plugin list",
          "plugin info kvasir.dram",
          "doctor",
          "config explain -s quest",
          "config import " + yaml,
          "model info -m " + model,
          "tokenize -m " + model + " -p hello",
          "run -m " + model + " -p hello -n 3 --temp 0",
          "run -m " + model + " -p hello -n 3 --temp 0 --json",
          "plan -m " + model + " -c 4096",
          "ppl -m " + model + " -f " + text + " -c 8",
          "compare -m " + model + " -p hello -n 2 -s quest",
          "bench recall -c 512 -b 64 -n 2 -s quest",
          "trace record -m " + model + " -f " + text + " -n 2 --force -o " + folder.path("trace"),
          "trace analyze " + folder.path("trace"),
          "trace replay " + folder.path("trace") + " -s quest --sink 1 --window 1",
          "model logits -m " + model + " -p hello --json",
          "task generate -m " + model + " --task passkey --length 300 -n 2",
          "task eval -m " + model + " --task passkey --length 300 -n 1",
          "--version",
          "run --help"};
}

}  // namespace

TEST_SUITE_BEGIN("tools/output");

TEST_CASE("a command whose output is lost fails, and says why") {
  const TinyModel m;
  for (const std::string& command : printing(m.path, m.folder)) {
    CAPTURE(command);
    const Finished whole = run_shell("kvasir " + command);
    CAPTURE(whole.err);
    REQUIRE(whole.code == 0);
    REQUIRE(whole.out != "");
    const Finished full = run_shell("kvasir " + command + " > /dev/full");
    CHECK(full.code == 2);
    CHECK(has(full.err, "kvasir: error: standard output: No space left on device\n"));
    const Finished closed = run_shell("kvasir " + command + " >&-");
    CHECK(closed.code == 2);
    CHECK(has(closed.err, "kvasir: error: standard output: Bad file descriptor\n"));
  }
}

TEST_CASE("whatever of the standard streams is closed, files keep out of their places") {
  const TinyModel m;
  const std::string command = "kvasir run -m " + m.path + " -p hello -n 3 --temp 0";
  const Finished whole = run_shell(command);
  REQUIRE(whole.code == 0);
  for (const char* closed : {"<&-", "2>&-", "<&- 2>&-"}) {
    CAPTURE(closed);
    const Finished done = run_shell(command + " " + closed);
    CHECK(done.code == 0);
    CHECK(done.out == whole.out);
  }
  for (const char* closed : {">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(closed);
    CHECK(run_shell(command + " " + closed).code == 2);
  }
  // chat reads standard input: without one there is nobody to talk to.
  const Finished chat = run_shell("kvasir chat --chat-template chatml -m " + m.path + " <&-");
  CHECK(chat.code == 2);
  CHECK(has(chat.err, "standard input"));
}

TEST_CASE("a reader that has enough ends a command quietly") {
  const TinyModel m;
  for (const std::string n : {"0", "2000"}) {
    const Finished done = run_shell("kvasir task generate -m " + m.path +
                                    " --task passkey --length 300 -n " + n + " | head -c 10");
    CHECK(done.code == 0);
    CHECK(done.out.size() == 10);
    CHECK(done.err == "");
  }
}

TEST_CASE("what -o names stays what it is") {
  const TinyModel m;
  const auto logits = [&](const std::string& to, const std::string& more = "") {
    return run_shell("kvasir model logits -m " + m.path + " -p hello -o " + to + more);
  };
  const std::string file = m.folder.path("logits.npy");
  REQUIRE(logits(file).code == 0);
  const std::string bytes = read_bytes(file);
  REQUIRE(bytes.size() > 100);

  const std::string target = m.folder.write("target", "old"), link = m.folder.path("link");
  fs::create_symlink("target", link);
  CHECK(logits(link).code == 2);
  CHECK(read_bytes(target) == "old");
  CHECK(logits(link, " --force").code == 0);
  CHECK(fs::is_symlink(link));
  CHECK(read_bytes(target) == bytes);
  const std::string dangling = m.folder.path("dangling");
  fs::create_symlink("not_there_yet", dangling);
  CHECK(logits(dangling).code == 0);
  CHECK(read_bytes(m.folder.path("not_there_yet")) == bytes);

  const std::string fifo = m.folder.path("fifo");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(run_shell("cat " + fifo + " > " + m.folder.path("read") + " & kvasir model logits -m " +
                  m.path + " -p hello -o " + fifo + "; wait")
            .code == 0);
  CHECK(fs::is_fifo(fifo));
  CHECK(read_bytes(m.folder.path("read")) == bytes);

  CHECK(logits("/dev/null").code == 0);
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(logits("/dev/stdout", " | cat").out.starts_with(bytes));
  const Finished full = logits("/dev/full");
  CHECK(full.code == 2);
  CHECK(has(full.err, "-o /dev/full: cannot be written: No space left on device"));
  for (const auto& entry : fs::directory_iterator(m.folder.root()))
    CHECK_FALSE(has(entry.path().string(), "partial"));
}

TEST_CASE("no command overwrites a file unasked") {
  const TinyModel m;
  const std::string text = m.folder.write("text", "Some words, and then some more of them.");
  const std::string yaml = m.folder.write("kt.yaml", "long_context:\n  second_select_num: 96\n");
  const std::string old = m.folder.write("old", "old");
  for (const std::string& command : std::vector<std::string>{
           "model random tiny-llama-test", "model logits -m " + m.path + " -p hello",
           "model skew -m " + m.path + " -f " + text,
           "task generate -m " + m.path + " --task passkey --length 300 -n 2",
           "task eval -m " + m.path + " --task passkey --length 300 -n 1",
           "config import " + yaml}) {
    CAPTURE(command);
    const std::string wanted = "kvasir " + command + " -o " + old;
    m.folder.write("old", "old");
    const Finished refused = run_shell(wanted);
    CHECK(refused.code == 2);
    CHECK(has(refused.err, "-o " + old + ": exists already; --force overwrites it"));
    CHECK(read_bytes(old) == "old");
    CHECK(run_shell(wanted + " --force").code == 0);
    CHECK(read_bytes(old) != "old");
  }
}

// A limit on the size of files stands for a full disk: the same error at the same place.
TEST_CASE("a full disk leaves whole lines, or no file") {
  const TinyModel m;
  const std::string out = m.folder.path("out");
  const Finished lines = run_shell("ulimit -f 2; kvasir task eval -m " + m.path +
                                   " --task passkey --length 300 -n 20 -o " + out);
  CHECK(lines.code == 2);
  CHECK(has(lines.err, "-o " + out + ": cannot be written: File too large; free space"));
  const std::string kept = read_bytes(out);
  CHECK(kept.size() > 100);
  CHECK(kept.ends_with("}\n"));
  fs::remove(out);
  const Finished whole = run_shell("ulimit -f 2; kvasir task generate -m " + m.path +
                                   " --task passkey --length 300 -n 20 -o " + out);
  CHECK(whole.code == 2);
  CHECK(has(whole.err, "-o " + out + ": cannot be written: File too large; free space"));
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a prompt cache is for its owner alone, and a file") {
  const TinyModel m;
  const std::string cache = m.folder.path("prompt.kv");
  const std::string command = "umask 0; kvasir run -m " + m.path + " -p hello -n 1 --prompt-cache ";
  REQUIRE(run_shell(command + cache).code == 0);
  CHECK(fs::status(cache).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  const Finished device = run_shell(command + "/dev/null");
  CHECK(device.code == 2);
  CHECK(has(device.err, "--prompt-cache /dev/null: is no regular file"));
}

TEST_CASE("an endless or unreadable prompt file is refused by name") {
  const TinyModel m;
  for (const auto& [file, why] : {std::pair{"/dev/zero", "is longer than 1.07 GB"},
                                  std::pair{"/proc/self/mem", "cannot be read: Input/output error"},
                                  std::pair{"/proc/self", "is a folder"},
                                  std::pair{"/no/file", "cannot be opened: No such"}}) {
    CAPTURE(file);
    const Finished done = run_shell("kvasir run -m " + m.path + " -f " + file);
    CHECK(done.code == 2);
    CAPTURE(done.err);
    CHECK(has(done.err, std::string("kvasir: error: -f ") + file + ": " + why));
  }
}

TEST_SUITE_END();
