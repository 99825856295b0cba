// Chunks that a storage keeps from process to process.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "tests/core/blend/support.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
namespace fs = std::filesystem;

constexpr uint32_t kLayers = 3;

struct Answer {
  uint64_t restored = 0;
  std::vector<float> logits = std::vector<float>(300);
};

// In an engine of its own, as in a process of its own.
Answer answer(const std::string& storage, double ratio) {
  Bench bench(8, 2);
  EngineOptions options = wide();
  options.model_hash = [] { return 1; };
  const auto engine = bench.engine(kBlendCache + storage, options);
  BlendWorld world(*engine, *bench.tiny.model, {2, 0, 1, 4, 3}, true, true);
  Answer out;
  out.restored = world.blender.chunks().restored_tokens();
  world.blender.blend(world.prompt, config_of(BlendMode::kRatio, ratio), 0, out.logits);
  return out;
}

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
  const std::string kept =
      "[storage]\nplugin = 'kvasir.tiered'\ntype_k = 'f32'\ntype_v = 'f32'\nstore = '" + store +
      "'\n";
  const std::string memory = "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f32'\ntype_v = 'f32'\n";
  for (const double ratio : {0.15, 0.5}) {
    const Answer plain = answer(memory, ratio);
    CHECK(plain.restored == 0);
    const Answer first = answer(kept, ratio), second = answer(kept, ratio);
    // Behind a BOS each, chunks of 13, 1, 41, 8 and 23 tokens fill 1, 0, 5, 1 and 3 blocks of 8.
    // The last token of a chunk is computed, so the last block of the longest but one is not used.
    CHECK(first.restored == (ratio == 0.15 ? 0 : 72));
    CHECK(second.restored == 72);
    CHECK(n_blocks(store) == 10 * kLayers);
    CHECK(first.logits == plain.logits);
    CHECK(second.logits == plain.logits);
  }
}

TEST_SUITE_END();
