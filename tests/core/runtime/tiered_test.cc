// Blocks that leave memory for a file: every strategy gives the numbers of blocks that stay, bit
// for bit, and what was not asked for is not read.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr uint32_t kBlock = 8;
const std::string kCache = "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 16\n";
const std::string kTypes = "type_k = 'f32'\ntype_v = 'f32'\n";
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
const std::string kTopK =
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 24\n"
    "[representative]\nplugin = 'kvasir.minmax'\n";
const std::string kInfLlm =
    "chunk_size = 40\nbypass = false\n"
    "[selector]\nplugin = 'kvasir.infllm'\ntopk = 3\nexc_block_size = 16\n"
    "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\nrepr_topk = 2\n";
const std::string kInfiniGen =
    "dense_layers = [0]\n"
    "[selector]\nplugin = 'kvasir.infinigen'\nbudget_tokens = 12\n";
const std::string kSnapKv = "[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 30\n";

std::string tiered(uint32_t cached_blocks, const std::string& more = "") {
  return "[storage]\nplugin = 'kvasir.tiered'\n" + kTypes +
         "cached_blocks = " + std::to_string(cached_blocks) + "\n" + more;
}

struct Numbers {
  std::vector<std::vector<float>> logits;
  void add(std::vector<float> row) { logits.push_back(std::move(row)); }
};

// Two sequences in a batch, a fork, a cut, and another prompt.
Numbers story(Engine& engine) {
  Numbers out;
  const auto a = engine.open(), b = engine.open();
  out.add(prefill(engine, a, some_tokens(131, 1)));
  out.add(prefill(engine, b, some_tokens(58, 2)));
  for (TokenId token = 0; token < 12; ++token) {
    std::vector<float> logits(600);
    engine.decode(std::vector<Engine::DecodeItem>{{a, token}, {b, token}}, logits);
    out.add(logits);
  }
  const auto c = engine.fork(a);
  for (TokenId token = 20; token < 26; ++token) {
    out.add(decode(engine, c, token));
    out.add(decode(engine, a, token + 50));
  }
  engine.close(b);
  out.add(prefill(engine, c, some_tokens(40, 3)));
  return out;
}

// Bytes of the nameless file in `folder`, once it holds `bytes`: writing is another thread's work.
uint64_t written(const std::string& folder, uint64_t bytes) {
  namespace fs = std::filesystem;
  uint64_t size = 0;
  for (int i = 0; i < 5000 && size < bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (fs::read_symlink(entry.path(), error).string().starts_with(folder + "/") && !error)
        size = fs::file_size(entry.path(), error);
    }
  }
  return size;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/tiered");

TEST_CASE("blocks in a file give the numbers of blocks in memory") {
  for (const std::string& strategy : {kDense, kTopK, kInfLlm, kInfiniGen, kSnapKv})
    for (const uint32_t cached : {1u, 5u, 1000u}) {
      if (few_cases() && cached != 1) continue;
      CAPTURE(strategy);
      CAPTURE(cached);
      Bench bench(8, 2);
      EngineOptions options;
      options.max_sequences = 3;
      options.max_context = 512;
      const auto plain =
          bench.engine(kCache + strategy + "[storage]\nplugin = 'kvasir.dram'\n" + kTypes, options);
      const auto moving = bench.engine(
          kCache + strategy + tiered(cached, cached == 5 ? "cache_strategy = 'fifo'\n" : ""),
          options);
      const Numbers want = story(*plain), got = story(*moving);
      REQUIRE(got.logits.size() == want.logits.size());
      for (size_t i = 0; i < want.logits.size(); ++i) {
        CAPTURE(i);
        CHECK(got.logits[i] == want.logits[i]);
      }
    }
}

TEST_CASE("a cut goes back into blocks that had left, and a saved sequence holds them") {
  Bench bench(8, 2);
  const auto plain = bench.engine(kCache + kTopK),
             moving = bench.engine(kCache + kTopK + tiered(1));
  const auto a = plain->open(), b = moving->open();
  CHECK(prefill(*plain, a, some_tokens(130, 5)) == prefill(*moving, b, some_tokens(130, 5)));
  for (const uint32_t kv_len : {129u, 61u, 5u}) {  // inside the open block, a full one, the first
    CAPTURE(kv_len);
    plain->truncate(a, kv_len);
    moving->truncate(b, kv_len);
    for (TokenId token = 0; token < 10; ++token)
      CHECK(decode(*plain, a, token) == decode(*moving, b, token));
    const auto saved = moving->save(b);
    const auto copy = moving->load(saved, "saved");
    CHECK(decode(*moving, copy, 7) == decode(*plain, a, 7));
    plain->truncate(a, kv_len + 10);
    moving->close(copy);
    CHECK(prefill(*plain, a, some_tokens(100, 6)) == prefill(*moving, b, some_tokens(100, 6)));
  }
}

TEST_CASE("what a strategy does not ask for stays in the file") {
  Bench bench(8, 2);
  constexpr uint64_t kBlockBytes = uint64_t{2} * 2 * kBlock * 16 * sizeof(float);
  const auto loaded = [&](const std::string& strategy, uint32_t cached) {
    bench.log.clear();
    const TempDir folder;
    const std::string path = std::filesystem::path(folder.path("x")).parent_path().string();
    auto engine = bench.engine(kCache + strategy + tiered(cached, "folder = '" + path + "'\n"));
    const auto seq = engine->open();
    prefill(*engine, seq, some_tokens(200, 5));
    REQUIRE(written(path, 3 * 25 * kBlockBytes) == 3 * 25 * kBlockBytes);
    for (TokenId token = 0; token < 20; ++token) decode(*engine, seq, token);
    engine.reset();  // the storage says on its way what it did
    for (const std::string& line : bench.log)
      if (const size_t at = line.find(" blocks ("); at != std::string::npos)
        return std::stoul(line.substr(line.rfind(' ', at - 1) + 1));
    FAIL("no line about what was read back");
    return 0ul;
  };
  const auto dense = loaded(kDense, 2), few = loaded(kTopK, 2), cached = loaded(kTopK, 8);
  CHECK(dense > 20 * 3 * 20);  // 20 steps, 3 layers, more than 20 of 25 blocks each
  CHECK(few < dense / 2);
  CHECK(cached < few);  // blocks chosen again are still there
  CHECK(loaded(kDense, 100) == 0);
}

TEST_CASE("a folder that takes no file is refused by name, before anything is read") {
  Bench bench(8, 2);
  const std::string strategy =
      kCache + kDense + tiered(1, "folder = '/proc/kvasir-has-no-folder-here'\n");
  CHECK_THROWS_WITH_AS(bench.engine(strategy), doctest::Contains("set folder to one that does"),
                       Error);
}
