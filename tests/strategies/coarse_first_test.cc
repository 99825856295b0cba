// Coarse copies of records change which records are read, and nothing of what is attended.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/given_world.h"

using namespace kvasir;
using namespace kvasir::test;

namespace {

using From = GivenWorld::From;

// A block per token, so that the prompt has three whole pages of records.
std::string strategy(const std::string& representative, const std::string& dtype, bool coarse) {
  return "[cache]\nblock_size = 1\nsink_tokens = 2\nwindow_tokens = 8\nchunk_size = 50\n"
         "[selector]\nplugin = 'block_topk'\nbudget_tokens = 12\n[representative]\nplugin = '" +
         representative + "'\ndtype = '" + dtype +
         "'\ncoarse_first = " + (coarse ? "true" : "false") + "\n";
}

struct Story {
  std::vector<Outputs> outputs;
  uint64_t bytes = 0;  // of records, in the first decoding
};

// Decodes behind a prompt, again after a cut into the last page and one into the page before, and
// behind a fork of the prompt.
Story told(GivenWorld& world, const std::string& toml) {
  const auto engine = world.bench.engine(world.model, toml, world.options);
  const SequenceId seq = engine->open();
  world.read(*engine, {seq}, 50, From::kModel);
  const SequenceId fork = engine->fork(seq);
  Story story;
  engine->reset_engagement();
  story.outputs.push_back(world.decode(*engine, seq));
  story.bytes = engine->decode_engagement().representative_bytes_read;
  for (const uint32_t kv_len : {215u, 130u}) {
    engine->truncate(seq, kv_len);
    story.outputs.push_back(world.decode(*engine, seq));
  }
  story.outputs.push_back(world.decode(*engine, fork));
  return story;
}

}  // namespace

TEST_SUITE_BEGIN("strategies/coarse_first");

TEST_CASE("what is attended is the same, bit for bit, with coarse copies and without") {
  for (const std::string representative : {"minmax", "mean"})
    for (const std::string dtype : {"f32", "f16"}) {
      CAPTURE(representative);
      CAPTURE(dtype);
      GivenWorld world;
      const Story with = told(world, strategy(representative, dtype, true));
      const Story without = told(world, strategy(representative, dtype, false));
      CHECK(with.outputs == without.outputs);
      CHECK(with.bytes != without.bytes);
      CHECK(with.outputs[0] == with.outputs[3]);
      CHECK(with.outputs[0] != with.outputs[1]);
      CHECK(with.outputs[1] != with.outputs[2]);
    }
}

TEST_SUITE_END();
