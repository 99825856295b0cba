// Chunks that a storage keeps from process to process.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <functional>

#include "tests/core/blend/support.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
namespace fs = std::filesystem;

constexpr uint32_t kLayers = 3;

const std::string kMemory = "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f32'\ntype_v = 'f32'\n";

std::string kept_in(const std::string& store) {
  return "[storage]\nplugin = 'kvasir.tiered'\ntype_k = 'f32'\ntype_v = 'f32'\nstore = '" + store +
         "'\n";
}

struct Answer {
  uint64_t restored = 0;
  std::vector<float> logits = std::vector<float>(300);
  BlendReport report;
};

// In an engine of its own, as in a process of its own. before: called when the chunks were added.
Answer answer(const std::string& storage, const BlendConfig& config,
              const std::function<void(BlendWorld&)>& before = {}) {
  Bench bench(8, 2);
  EngineOptions options = wide();
  options.model_hash = [] { return 1; };
  const auto engine = bench.engine(kBlendCache + storage, options);
  BlendWorld world(*engine, *bench.tiny.model, {2, 0, 1, 4, 3}, true, true);
  Answer out;
  out.restored = world.blender.chunks().restored_tokens();
  if (before) before(world);
  const Blended blended = world.blender.blend(world.prompt, config, 0, out.logits);
  out.report = blended.report;
  const std::vector<float> more = decoded(*engine, blended.seq);
  out.logits.insert(out.logits.end(), more.begin(), more.end());
  return out;
}

// Behind a BOS each, chunks of 13, 1, 41, 8 and 23 tokens, filled up to blocks of 8.
constexpr size_t kBlocks = 2 + 1 + 6 + 2 + 3;
constexpr uint64_t kTokens = 14 + 2 + 42 + 9 + 24;

size_t n_blocks(const std::string& folder) {
  const auto begin = fs::recursive_directory_iterator(folder);
  return static_cast<size_t>(std::count_if(begin, {}, [](const fs::directory_entry& entry) {
    return entry.is_regular_file() && entry.path().filename() != "about";
  }));
}

}  // namespace

TEST_SUITE_BEGIN("core/blend/stored");

TEST_CASE("chunks that were kept are not read again and blend alike; a blend is not kept") {
  const TempDir dir;
  const std::string store = dir.path("store");
  bool is_first = true;
  for (const BlendMode mode :
       {BlendMode::kRatio, BlendMode::kReuse, BlendMode::kOracle, BlendMode::kPrefix})
    for (const bool ahead : {true, false}) {
      CAPTURE(name(mode));
      CAPTURE(ahead);
      BlendConfig config = config_of(mode, 0.3);
      config.load_ahead = ahead;
      const Answer plain = answer(kMemory, config);
      CHECK(plain.restored == 0);
      const Answer first = answer(kept_in(store), config), second = answer(kept_in(store), config);
      CHECK(first.restored == (is_first ? 0 : kTokens));
      is_first = false;
      CHECK(second.restored == kTokens);
      if (mode == BlendMode::kRatio || mode == BlendMode::kReuse)  // others make exact prompts
        CHECK(n_blocks(store) == kBlocks * kLayers);
      CHECK(first.logits == plain.logits);
      CHECK(second.logits == plain.logits);
      if (mode == BlendMode::kRatio) {
        REQUIRE(second.report.tiers.size() >= 1);
        CHECK(second.report.tiers[0].tier == ChunkTier::kStore);
        REQUIRE(plain.report.tiers.size() == 1);
        CHECK(plain.report.tiers[0].tier == ChunkTier::kMemory);
      }
    }
}

TEST_CASE("chunks that the store loses before a prompt takes them are read again") {
  for (const uint32_t layer : {1u, 2u})
    for (const BlendMode mode : {BlendMode::kRatio, BlendMode::kReuse, BlendMode::kPrefix}) {
      CAPTURE(layer);
      CAPTURE(name(mode));
      const TempDir dir;
      const std::string store = dir.path("store");
      const BlendConfig config = config_of(mode, 0.3);
      answer(kept_in(store), config_of(BlendMode::kReuse));
      const Answer lost = answer(kept_in(store), config, [&](BlendWorld&) {
        const std::string ending = layer == 1 ? "-1" : "-2";
        std::vector<fs::path> gone;
        for (const auto& entry : fs::recursive_directory_iterator(store))
          if (entry.path().filename().string().ends_with(ending)) gone.push_back(entry.path());
        CHECK(gone.size() == kBlocks);
        for (const fs::path& path : gone) fs::remove(path);
      });
      CHECK(lost.restored == kTokens);
      CHECK(lost.logits == answer(kMemory, config).logits);
      if (mode != BlendMode::kPrefix) CHECK(n_blocks(store) == kBlocks * kLayers);  // written again
    }
}

TEST_CASE("a chunk that is let go comes from the store, and not from the process") {
  const TempDir dir;
  const BlendConfig config = config_of(BlendMode::kRatio, 0.3);
  const Answer plain = answer(kMemory, config);
  const Answer got = answer(kept_in(dir.path("store")), config, [](BlendWorld& world) {
    ChunkStore& chunks = world.blender.chunks();
    for (const ChunkId chunk : world.prompt.chunks) {
      CHECK(!chunks.is_stored(chunk));
      chunks.let_go(chunk);
      CHECK(chunks.bring(chunk, std::chrono::seconds(20)));
      CHECK(chunks.is_stored(chunk));
    }
  });
  CHECK(got.logits == plain.logits);
  CHECK(got.report.tiers[0].tier == ChunkTier::kStore);
  const Answer nowhere = answer(kMemory, config, [](BlendWorld& world) {
    world.blender.chunks().let_go(world.prompt.chunks[0]);
    CHECK(!world.blender.chunks().bring(world.prompt.chunks[0]));
    for (const ChunkId chunk : world.prompt.chunks) world.blender.chunks().let_go(chunk);
  });
  CHECK(nowhere.logits == plain.logits);
}

TEST_CASE(
    "a prompt that is restored a layer at a time is read from, and goes on when all are there") {
  const TempDir dir;
  const std::vector<TokenId> tokens = some_tokens(61, 5);
  std::vector<float> want;
  for (const bool is_first : {true, false}) {
    Bench bench(8, 2);
    EngineOptions options = wide();
    options.model_hash = [] { return 1; };
    const auto engine = bench.engine(kBlendCache + kept_in(dir.path("store")), options);
    const SequenceId plain = engine->open();
    if (is_first) {
      CHECK(engine->restore_first_layer(plain, tokens) == 0);
      want = prefill(*engine, plain, tokens);
      continue;
    }
    CHECK(engine->restore_unit() == 8);
    const SequenceId seq = engine->open();
    REQUIRE(engine->restore_first_layer(seq, tokens) == 56);
    const std::vector<uint32_t> two = {0, 55};
    std::vector<float> k(2 * 32), v(k);
    engine->read_kv(seq, 0, two, k.data(), v.data());
    CHECK(!engine->has_layer(seq, 1));
    const std::string id = "sequence " + std::to_string(seq);
    const std::string missing = id + " has layers that were not restored yet";
    CHECK_THROWS_WITH(engine->read_kv(seq, 1, two, k.data(), v.data()),
                      (id + ": layer 1 was not restored yet").c_str());
    CHECK_THROWS_WITH(engine->begin_prompt(seq, 5), missing.c_str());
    CHECK_THROWS_WITH(engine->fork(seq), missing.c_str());
    CHECK_THROWS_WITH(engine->restore_first_layer(seq, tokens), missing.c_str());
    CHECK(engine->restore_layer(seq, 1));
    CHECK(engine->has_layer(seq, 1));
    engine->read_kv(seq, 1, two, k.data(), v.data());
    CHECK(engine->restore_other_layers(seq));
    CHECK(engine->kv_len(seq) == 56);
    CHECK(prefill(*engine, seq, std::span(tokens).subspan(56)) == want);
  }
}

TEST_SUITE_END();
