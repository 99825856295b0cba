// Prompts that begin with blocks of earlier engines: the numbers are those of a prompt that was
// computed, and whatever changes K and V keeps them apart.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/redis_server.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
namespace fs = std::filesystem;

constexpr uint32_t kBlock = 8, kLayers = 3;
const std::string kDense = "[selector]\nplugin = 'kvasir.dense'\n";
std::string top_k(const std::string& representative) {
  return "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 24\n[representative]\nplugin = "
         "'kvasir." +
         representative + "'\n";
}
std::string cache(uint32_t block_size = kBlock, uint32_t chunk_size = 32) {
  return "[cache]\nblock_size = " + std::to_string(block_size) +
         "\nchunk_size = " + std::to_string(chunk_size) + "\nsink_tokens = 8\nwindow_tokens = 16\n";
}
std::string stored(const std::string& folder, const std::string& type = "f32",
                   const std::string& more = "") {
  return "[storage]\nplugin = 'kvasir.tiered'\ntype_k = '" + type + "'\ntype_v = '" + type +
         "'\nstore = '" + folder + "'\n" + more;
}
const std::string kMemory = "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f32'\ntype_v = 'f32'\n";

EngineOptions options(uint64_t model_hash = 1) {
  EngineOptions out;
  out.max_context = 512;
  out.model_hash = [=] { return model_hash; };
  return out;
}

struct Answer {
  uint32_t restored = 0;
  Logits logits;  // of the prompt's last token, and of some that are decoded
};

// On an engine of its own, as in a process of its own.
Answer answer(const std::string& toml, const std::vector<TokenId>& prompt,
              const EngineOptions& o = options(), std::vector<std::string>* log = nullptr,
              const Model* model = nullptr) {
  Bench bench;
  const auto engine = model ? bench.engine(*model, toml, o) : bench.engine(toml, o);
  Answer out;
  const SequenceId seq = engine->open();
  out.restored = engine->restore(seq, prompt);
  CHECK(engine->kv_len(seq) == out.restored);
  out.logits.push_back(prefill(*engine, seq, std::span(prompt).subspan(out.restored)));
  for (uint32_t i = 0; i < 10; ++i) out.logits.push_back(decode(*engine, seq, token_at(i)));
  engine->close(seq);
  if (log) *log = bench.log;
  return out;
}

std::vector<fs::path> files_of(const TempDir& dir) {
  std::vector<fs::path> out;
  if (fs::exists(dir.path("store")))
    for (const auto& entry : fs::recursive_directory_iterator(dir.path("store")))
      if (entry.is_regular_file() && entry.path().filename() != "about")
        out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/store");

TEST_CASE("the second run of a prompt begins with the blocks of the first, bit for bit") {
  for (const std::string& strategy :
       {kDense, top_k("minmax"), top_k("mean"), top_k("max"),
        std::string("[selector]\nplugin = 'kvasir.streaming'\n"),
        std::string("[selector]\nplugin = 'kvasir.oracle'\nbudget_tokens = 24\n")}) {
    CAPTURE(strategy);
    const TempDir dir;
    const std::string toml = cache() + strategy + stored(dir.path("store"));
    const auto prompt = some_tokens(131);
    const Answer computed = answer(cache() + strategy + kMemory, prompt);
    const Answer first = answer(toml, prompt), second = answer(toml, prompt);
    CHECK(first.restored == 0);
    CHECK(second.restored == 128);
    CHECK(first.logits == computed.logits);
    CHECK(second.logits == computed.logits);
    CHECK(files_of(dir).size() == 16 * kLayers);
  }
}

TEST_CASE("the last token is computed, and a prompt takes what it shares with an earlier one") {
  const TempDir dir;
  const std::string toml = cache() + kDense + stored(dir.path("store"));
  auto prompt = some_tokens(128);
  answer(toml, prompt);
  CHECK(answer(toml, prompt).restored == 120);
  CHECK(answer(toml, {prompt.begin(), prompt.begin() + 50}).restored == 48);
  CHECK(answer(toml, {prompt.begin(), prompt.begin() + 1}).restored == 0);
  auto longer = prompt;
  const auto more = some_tokens(60, 7);
  longer.insert(longer.end(), more.begin(), more.end());
  const Answer got = answer(toml, longer);
  CHECK(got.restored == 128);
  CHECK(got.logits == answer(cache() + kDense + kMemory, longer).logits);
  // One token changes the names of its block and of all behind it.
  auto changed = prompt;
  changed[70] = changed[70] == 3 ? 4 : 3;
  const Answer other = answer(toml, changed);
  CHECK(other.restored == 64);
  CHECK(other.logits == answer(cache() + kDense + kMemory, changed).logits);
  // Blocks of one strategy serve another that reads prompts as it does.
  const Answer sparse = answer(cache() + top_k("minmax") + stored(dir.path("store")), prompt);
  CHECK(sparse.restored == 120);
  CHECK(sparse.logits == answer(cache() + top_k("minmax") + kMemory, prompt).logits);
}

TEST_CASE("in f32 the chunk size changes nothing, so blocks serve any") {
  const TempDir dir;
  const auto prompt = some_tokens(131);
  answer(cache(kBlock, 32) + kDense + stored(dir.path("store")), prompt);
  CHECK(answer(cache(kBlock, 48) + kDense + stored(dir.path("store")), prompt).restored == 128);
}

TEST_CASE("whatever changes K and V has names of its own") {
  const TempDir dir;
  const auto prompt = some_tokens(131);
  const std::string store = dir.path("store");
  answer(cache() + kDense + stored(store), prompt);
  REQUIRE(answer(cache() + kDense + stored(store), prompt).restored == 128);
  CHECK(answer(cache() + kDense + stored(store), prompt, options(2)).restored == 0);
  CHECK(answer(cache(16) + kDense + stored(store), prompt).restored == 0);
  CHECK(answer(cache() + kDense + stored(store, "f16"), prompt).restored == 0);
  CHECK(answer(cache() + kDense + stored(store) + "[attention]\nplugin = 'kvasir.reference'\n",
               prompt)
            .restored == 0);
}

TEST_CASE("plugins are told whether attention may round, which is part of the name") {
  const TempDir dir;
  const auto prompt = some_tokens(131);
  const std::string toml = cache() + kDense + stored(dir.path("store"));
  const TinyModel tiny = tiny_model(8, 2);
  const auto model_of = [&](Compute compute) {
    Model::Options made;
    made.compute = compute;  // of weights in f32: kInt8 may be f32, too
    made.max_batch_tokens = 64;
    return Model::load(*tiny.file, test_pool(), made);
  };
  const auto exact = model_of(Compute::kF32), free = model_of(Compute::kInt8);
  Bench bench;
  CHECK(bench.engine(*exact, toml, options())->geometry().may_round == 0);
  CHECK(bench.engine(*free, toml, options())->geometry().may_round == 1);
  answer(toml, prompt, options(), nullptr, exact.get());
  CHECK(answer(toml, prompt, options(), nullptr, free.get()).restored == 0);
  CHECK(answer(toml, prompt, options(), nullptr, exact.get()).restored == 128);
}

TEST_CASE("compute type and independence of chunks are part of the name") {
  if (!compute_supported(Compute::kBF16)) {
    MESSAGE("SKIPPED: no bf16 products on this CPU");
    return;
  }
  const TempDir dir;
  const auto prompt = some_tokens(131);
  const std::string toml = cache() + kDense + stored(dir.path("store"));
  const TinyModel tiny = tiny_model(8, 2);
  answer(toml, prompt);
  Model::Options bf16;
  bf16.compute = Compute::kBF16;
  bf16.max_batch_tokens = 64;
  const auto other = Model::load(*tiny.file, test_pool(), bf16);
  CHECK(answer(toml, prompt, options(), nullptr, other.get()).restored == 0);
  // Where a result depends on what shares its step, whole chunks come back, and only in chunks of
  // that size.
  if (!other->tokens_are_independent()) {
    const Answer again = answer(toml, prompt, options(), nullptr, other.get());
    CHECK(again.restored == 128);
    CHECK(again.logits ==
          answer(cache() + kDense + kMemory, prompt, options(), nullptr, other.get()).logits);
    const std::string chunks = cache(kBlock, 24) + kDense + stored(dir.path("store"));
    CHECK(answer(chunks, prompt, options(), nullptr, other.get()).restored == 0);
  }
  bf16.deterministic = true;
  const auto fixed = Model::load(*tiny.file, test_pool(), bf16);
  if (!other->tokens_are_independent())
    CHECK(answer(toml, prompt, options(), nullptr, fixed.get()).restored == 0);
}

TEST_CASE("strategies that need a computed prompt compute it, and say so once") {
  const auto prompt = some_tokens(131);
  for (const std::string& strategy :
       {std::string("[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 30\n"),
        std::string("[selector]\nplugin = 'kvasir.h2o'\nbudget_tokens = 24\n"),
        std::string("[selector]\nplugin = 'kvasir.tova'\nbudget_tokens = 24\n"),
        std::string("dense_layers = [0]\n[selector]\nplugin = 'kvasir.infinigen'\nbudget_tokens = "
                    "12\n"),
        std::string(
            "bypass = false\n[selector]\nplugin = 'kvasir.infllm'\ntopk = 3\nexc_block_size "
            "= 16\n[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\nrepr_topk "
            "= 2\n"),
        "positions = 'slot'\n[selector]\nplugin = 'kvasir.streaming'\n" + std::string()}) {
    CAPTURE(strategy);
    const TempDir dir;
    answer(cache() + kDense + stored(dir.path("store")), prompt);
    std::vector<std::string> log;
    const Answer got =
        answer(cache() + strategy + stored(dir.path("store")), prompt, options(), &log);
    CHECK(got.restored == 0);
    CHECK(got.logits == answer(cache() + strategy + kMemory, prompt).logits);
    CHECK(std::count_if(log.begin(), log.end(), [](const std::string& line) {
            return line.find("not taken from the store") != std::string::npos;
          }) == 1);
  }
}

TEST_CASE("what was decoded, made under eviction, given or computed again is not stored") {
  const auto prompt = some_tokens(64), more = some_tokens(64, 5);
  const auto n_stored = [&](const std::string& strategy, const auto& story) {
    const TempDir dir;
    {
      Bench bench;
      const auto engine = bench.engine(cache() + strategy + stored(dir.path("store")), options());
      const SequenceId seq = engine->open();
      prefill(*engine, seq, prompt);
      story(*engine, seq);
    }
    return files_of(dir).size() / kLayers;
  };
  const auto second_turn = [&](Engine& engine, SequenceId seq) { prefill(engine, seq, more); };
  CHECK(n_stored(kDense, second_turn) == 16);
  CHECK(n_stored(kDense, [&](Engine& engine, SequenceId seq) {
          for (uint32_t i = 0; i < 16; ++i) decode(engine, seq, token_at(i));
          prefill(engine, seq, more);
        }) == 8);
  CHECK(n_stored("[selector]\nplugin = 'kvasir.snapkv'\nbudget_tokens = 16\n", second_turn) == 8);
  CHECK(n_stored(kDense, [&](Engine& engine, SequenceId seq) {
          const uint32_t again[] = {3, 20};
          const StepItem item{.seq = seq, .recompute = again};
          REQUIRE(!engine.step({&item, 1})[0].error);
          prefill(engine, seq, more);
        }) == 8);
  CHECK(n_stored(kDense, [&](Engine& engine, SequenceId seq) {
          const auto bytes = engine.save(seq);
          prefill(engine, engine.load(bytes, "bytes"), more);
        }) == 8);
}

TEST_CASE("a damaged or shortened file is computed anew and replaced, never used") {
  const TempDir dir;
  const std::string toml = cache() + kDense + stored(dir.path("store"));
  const auto prompt = some_tokens(67);
  const Logits want = answer(toml, prompt).logits;
  const auto files = files_of(dir);
  REQUIRE(files.size() == 8 * kLayers);
  const auto size = fs::file_size(files[0]);
  uint32_t n_less = 0;
  for (uint32_t i = 0; i < (few_cases() ? 6u : 40u); ++i) {
    CAPTURE(i);
    const fs::path& file = files[i * 7 % files.size()];
    if (i % 5 == 4) {
      fs::resize_file(file, size * i / 41);
    } else {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(i < 13 ? i * 8 : i * 2654435761u % size);
      bytes.seekg(at);
      const int byte = bytes.get();
      bytes.seekp(at);
      bytes.put(static_cast<char>(byte ^ (1 << i % 8)));
    }
    std::vector<std::string> log;
    const Answer got = answer(toml, prompt, options(), &log);
    CHECK(got.logits == want);
    n_less += got.restored < 64;
    CHECK(std::any_of(log.begin(), log.end(), [&](const std::string& line) {
      return line.find(file.filename()) != std::string::npos;
    }));
    CHECK(files_of(dir) == files);  // written again
    CHECK(answer(toml, prompt).restored == 64);
  }
  CHECK(n_less == (few_cases() ? 6u : 40u));
}

TEST_CASE("the store keeps its limit, and what is used last") {
  const TempDir dir;
  const uint64_t block = 2 * 2 * kBlock * 16 * sizeof(float) + 104;
  const std::string limit =
      "store_limit_bytes = " + std::to_string(40 * block) + "\n";  // 13 blocks of all layers
  const std::string toml = cache() + kDense + stored(dir.path("store"), "f32", limit);
  for (uint32_t seed = 1; seed < 8; ++seed) {
    answer(toml, some_tokens(67, seed));
    uint64_t bytes = 0;
    for (const auto& file : files_of(dir)) bytes += fs::file_size(file);
    CHECK(bytes <= 40 * block);
    CHECK(bytes > 20 * block);
  }
}

TEST_CASE("over a server the second run begins with the blocks of the first, bit for bit") {
  if (!can_run_redis()) return;
  RedisServer server;
  const auto prompt = some_tokens(131);
  for (const std::string compress : {"auto", "always"}) {
    CAPTURE(compress);
    server.ask({"FLUSHALL"});
    const std::string store = server.address("&compress=" + compress);
    const std::string toml = cache() + kDense + stored(store);
    const Logits want = answer(cache() + kDense + kMemory, prompt).logits;
    CHECK(answer(toml, prompt).restored == 0);
    CHECK(server.keys().size() == 16 * kLayers + 1);
    const Answer again = answer(toml, prompt);
    CHECK(again.restored == 128);
    CHECK(again.logits == want);
    const Answer sparse = answer(cache() + top_k("minmax") + stored(store), prompt);
    CHECK(sparse.restored == 128);
    CHECK(sparse.logits == answer(cache() + top_k("minmax") + kMemory, prompt).logits);
    CHECK(answer(toml, prompt, options(2)).restored == 0);  // another model
  }
  server.stop();
  std::vector<std::string> log;
  const Answer alone = answer(cache() + kDense + stored(server.address()), prompt, options(), &log);
  CHECK(alone.restored == 0);
  CHECK(alone.logits == answer(cache() + kDense + kMemory, prompt).logits);
  CHECK(std::count_if(log.begin(), log.end(), [](const std::string& line) {
          return line.find("does not serve") != std::string::npos;
        }) == 1);
}

TEST_CASE("two engines write and read one store at once") {
  const TempDir dir;
  const std::string toml = cache() + kDense + stored(dir.path("store"));
  const auto prompt = some_tokens(131);
  const Logits want = answer(cache() + kDense + kMemory, prompt).logits;
  Bench bench;
  auto a = bench.engine(toml, options());
  const auto b = bench.engine(toml, options());
  const SequenceId first = a->open(), second = b->open();
  a->begin_prompt(first, 131);
  for (uint32_t at = 0; at < 131; at += 32) {
    const uint32_t n = std::min(32u, 131 - at);
    const StepItem item{.seq = first, .tokens = std::span(prompt).subspan(at, n)};
    REQUIRE(!a->step({&item, 1})[0].error);
    const SequenceId reader = b->open();
    const uint32_t found = b->restore(reader, prompt);  // whatever is there by now
    CHECK(prefill(*b, reader, std::span(prompt).subspan(found)) == want[0]);
    b->close(reader);
  }
  a->close(first);
  a.reset();  // what it stores is written
  CHECK(b->restore(second, prompt) == 128);
  CHECK(prefill(*b, second, std::span(prompt).subspan(128)) == want[0]);
}

TEST_SUITE_END();
