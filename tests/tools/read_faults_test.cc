// Each call that reads fails once, in a run of its own: a file that could not be read is never
// taken for a shorter one.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/tools/faults.h"
#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
using Arguments = std::vector<std::string>;

struct Reader {
  Arguments command;
  std::string file;  // that it must name
};

struct Files {
  TinyModel model;
  TempDir folder;  // of what is read
  std::string text = folder.write("text", "Some words, and then some more of them, to the end.");
  std::string skew = folder.path("skew"), prompt = folder.path("prompt.kv");

  Arguments run(const Arguments& more) const {
    Arguments all = {"run", "-m", model.path, "-p", "hello", "-n", "3", "--temp", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<Reader> readers() const {
    std::string longer;
    for (int i = 0; i < 200; ++i) longer.append(" ").append(std::to_string(i));
    const std::string sample = folder.write("sample", longer);
    const std::string base = folder.write("base.toml", "[cache]\nblock_size = 16\n");
    const std::string toml =
        folder.write("strategy.toml", "include = [\"base.toml\"]\n[cache]\nwindow_tokens = 64\n");
    const std::string yaml = folder.write("kt.yaml", "long_context:\n  second_select_num: 96\n");
    const std::string ids = folder.write("ids", "1 2 3 4 5");
    const std::string heads = folder.write("heads", "0.5 0.5\n0.1 0.9\n");
    const std::string plugin = folder.path("tiered.so");
    std::filesystem::copy_file(KVASIR_BINARY_DIR "/plugins/tiered.so", plugin);
    REQUIRE(run_kvasir({"model", "skew", "-m", model.path, "-f", sample, "-o", skew}).code == 0);
    REQUIRE(run_kvasir(run({"--prompt-cache", prompt})).code == 0);
    return {{{"tokenize", "-m", model.path, "-f", text}, text},
            {{"ppl", "-m", model.path, "-f", sample, "-c", "64"}, sample},
            {{"model", "logits", "-m", model.path, "--tokens-file", ids, "--json"}, ids},
            {{"config", "import", yaml}, yaml},
            {{"config", "explain", "-s", toml}, folder.root()},
            {{"plugin", "info", plugin}, plugin},
            {run({"-s", "duoattention", "--set", "selector.head_file=" + heads}), heads},
            {run({"-s", "infinigen", "--set", "selector.skew_file=" + skew}), skew},
            {run({"--prompt-cache", prompt, "--prompt-cache-ro"}), prompt}};
  }
};

}  // namespace

TEST_SUITE_BEGIN("tools/read_faults");

TEST_CASE("an error in reading is said, at whichever call it comes") {
  if (!can_inject_faults()) return;
  const Files f;
  for (const Reader& reader : f.readers()) {
    CAPTURE(reader.file);
    const Finished whole = run_kvasir(reader.command);
    CAPTURE(whole.err);
    REQUIRE(whole.code == 0);
    const int n = fail_each("eio", "open,read,map", f.folder.root(), reader.command,
                            [&](const Faulted& done) {
                              CHECK(done.code == 2);
                              CHECK(done.says("kvasir: error: "));
                              CHECK(done.says(reader.file));
                              CHECK(done.says("cannot be "));
                            });
    CHECK(n >= 2);
    for (const char* kind : {"short", "eintr"}) {
      CAPTURE(kind);
      const Faulted done = run_with({kind, "read"}, f.folder.root(), reader.command);
      CHECK(done.code == 0);
      CHECK(done.out == whole.out);
    }
    MESSAGE(reader.command[0] << " " << reader.command[1] << ", " << reader.file << ": " << n
                              << " calls");
  }
}

TEST_CASE("a block that does not come back from the file of tiered ends the run by name") {
  if (!can_inject_faults()) return;
  const TieredRun f;
  for (const std::string kind : {"eio", "flip"}) {
    const auto check = [&](const Faulted& done) {
      CHECK(done.code == 1);
      CHECK(done.says("could not be read back from the file in " + f.folder.root().string()));
      CHECK(done.says("check that disk"));
      CHECK(done.says("is lost [KVASIR_ERR_IO]"));
    };
    const int n = fail_each(kind, "read", f.folder.root(), f.command, check, {}, 24);
    CHECK(n >= 4);
    MESSAGE(kind << ": " << n << " calls");
  }
}

TEST_CASE("a mapped file that is cut short is an error that names it, not a crash") {
  if (!can_inject_faults()) return;
  const Files f;
  std::string words;
  for (int i = 0; i < 500; ++i) words.append(" ").append(std::to_string(i));
  const std::string prompt = f.model.folder.write("prompt", words);
  const std::string model = f.folder.path("model.gguf"), cache = f.folder.path("prompt.kv");
  const Arguments load = {"run", "-m", f.model.path,     "-f", prompt, "-c", "2048",
                          "-n",  "1",  "--prompt-cache", cache};
  REQUIRE(run_kvasir(load).code == 0);
  std::filesystem::copy_file(f.model.path, model);
  for (const auto& [file, command] :
       {std::pair{model, Arguments{"run", "-m", model, "-p", "hello", "-n", "1"}},
        std::pair{cache, load}}) {
    const Faulted done = run_with({"shrink", "map"}, f.folder.root(), command);
    CAPTURE(done.err);
    CHECK(done.code == 2);
    CHECK(done.says("kvasir: error: " + file + ": cannot be read (SIGBUS): it was cut short"));
    CHECK(!done.says("crash"));
  }
}

TEST_SUITE_END();
