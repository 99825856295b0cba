// A prompt cache serves the model, arithmetic and settings it was made with, and no others; how a
// value was written does not matter.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "tests/tools/tiny_model.h"

namespace {

using namespace kvasir::test;
namespace fs = std::filesystem;

class Runs {
 public:
  Finished operator()(const std::vector<std::string>& more, const std::string& model = "") const {
    std::vector<std::string> command{"run",
                                     "-m",
                                     model.empty() ? m.path : model,
                                     "-p",
                                     "The quick brown fox jumps over the lazy dog.",
                                     "-n",
                                     "4",
                                     "--temp",
                                     "0",
                                     "--json"};
    command.insert(command.end(), more.begin(), more.end());
    return run_kvasir(command, {"XDG_CACHE_HOME=" + hashes});
  }
  TinyModel m;
  std::string hashes = m.folder.path("cache");
  std::string cache = m.folder.path("prompt.kv");
};

uint32_t cached_tokens(const Finished& done) {
  CAPTURE(done.err);
  REQUIRE(done.code == 0);
  return nlohmann::json::parse(done.out)["cached_prompt_tokens"].get<uint32_t>();
}

}  // namespace

TEST_SUITE_BEGIN("tools/model_identity");

TEST_CASE("one changed bit anywhere in the weights is another model") {
  const Runs run;
  REQUIRE(run({"--prompt-cache", run.cache, "--compute", "f32"}).code == 0);
  const std::string bytes = read_bytes(run.m.path);
  const size_t weights = bytes.size() / 2;  // metadata and directory lie before
  for (const size_t at : {weights + 1, weights + 100'003, bytes.size() - 700}) {
    CAPTURE(at);
    REQUIRE(at < bytes.size());
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const Finished done = run({"--prompt-cache", run.cache, "--compute", "f32"},
                              run.m.folder.write("changed.gguf", changed));
    CHECK(done.code == 2);
    CHECK(has(done.err, "it was saved with model hash = "));
  }
  const std::string copy = run.m.folder.write("copy.gguf", bytes);
  CHECK(cached_tokens(run({"--prompt-cache", run.cache, "--compute", "f32"}, copy)) > 5);
}

TEST_CASE("the hash is kept until the file changes, and computed only for a cache") {
  const Runs run;
  REQUIRE(run({}).code == 0);
  CHECK_FALSE(fs::exists(run.hashes));
  REQUIRE(run({"--prompt-cache", run.cache}).code == 0);
  const fs::path folder = fs::path(run.hashes) / "kvasir" / "model-hashes";
  const auto kept = [&] {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
    return files;
  };
  REQUIRE(kept().size() == 1);
  const fs::path file = kept()[0];
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  std::string line = read_bytes(file.string());
  CHECK(cached_tokens(run({"--prompt-cache", run.cache})) > 5);

  // What is kept is believed: another number is another model.
  REQUIRE(line.size() > 20);
  const size_t digit = line.size() - 2;
  line[digit] = line[digit] == '0' ? '1' : '0';
  std::ofstream(file) << line;
  const Finished other = run({"--prompt-cache", run.cache});
  CHECK(other.code == 2);
  CHECK(has(other.err, "model hash"));
  for (const std::string damaged : {"", "nothing", "1 2 3: zz"}) {
    std::ofstream(file, std::ios::trunc) << damaged;
    CHECK(cached_tokens(run({"--prompt-cache", run.cache})) > 5);
  }
  // A write that leaves the size and sets the time back is seen all the same.
  const auto time = fs::last_write_time(run.m.path);
  std::string bytes = read_bytes(run.m.path);
  bytes[bytes.size() - 700] = static_cast<char>(bytes[bytes.size() - 700] ^ 1);
  std::ofstream(run.m.path, std::ios::binary) << bytes;
  fs::last_write_time(run.m.path, time);
  CHECK(run({"--prompt-cache", run.cache}).code == 2);
}

TEST_CASE("defaults are the values they stand for, other values are named") {
  const Runs run;
  REQUIRE(run({"--prompt-cache", run.cache}).code == 0);
  for (const std::vector<std::string>& same :
       std::vector<std::vector<std::string>>{{"-s", "dense"},
                                             {"--ctk", "f16"},
                                             {"-s", "dense", "--set", "storage.type_v=f16"},
                                             {"--set", "cache.block_size=128"},
                                             {"--set", "cache.chunk_size=32"},
                                             {"--set", "attention.plugin=kvasir.reference"}}) {
    CAPTURE(same.back());
    std::vector<std::string> arguments = same;
    arguments.insert(arguments.end(), {"--prompt-cache", run.cache, "--prompt-cache-ro"});
    CHECK(cached_tokens(run(arguments)) > 5);
  }
  for (const auto& [more, said] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--ctk", "f32"}, R"(storage.type_k = "f16", which is "f32" here)"},
           {{"--set", "cache.block_size=64"}, "cache.block_size = 128, which is 64 here"},
           {{"--set", "selector.plugin=kvasir.random"},
            "selector.plugin = kvasir.dense, which is kvasir.random here"}}) {
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"--prompt-cache", run.cache});
    const Finished done = run(arguments);
    CHECK(done.code == 2);
    CAPTURE(done.err);
    CHECK(has(done.err, said));
  }
  // What the matrices are multiplied in by default is the CPU's, whether attention rounds is not.
  const Finished f32 = run({"--compute", "f32", "--prompt-cache", run.cache});
  CHECK(f32.code == 2);
  CHECK((has(f32.err, "compute = bf16, which is f32 here") ||
         has(f32.err, "attention may round (unless --compute f32) = 1, which is 0 here")));
  const Finished bf16 = run({"--compute", "bf16", "--prompt-cache", run.cache});
  CHECK((bf16.code == 0 || has(bf16.err, "compute = f32, which is bf16 here") ||
         has(bf16.err, "--compute bf16: this CPU has no")));
}

TEST_SUITE_END();
