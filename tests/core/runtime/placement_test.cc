// A machine of several memory nodes computes what a machine of one does.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/runtime/support.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

const std::string kToml =
    "[cache]\nblock_size = 16\nsink_tokens = 4\nwindow_tokens = 32\nchunk_size = 50\n"
    "[selector]\nplugin = 'kvasir.block_topk'\nbudget_tokens = 64\n"
    "[representative]\nplugin = 'kvasir.minmax'\n"
    "[storage]\nplugin = 'kvasir.dram'\ntype_k = 'f16'\ntype_v = 'bf16'\n"
    "[attention]\nplugin = 'kvasir.cpu'\n";

struct Outcome {
  Logits logits;
  bool parts_apart = false;  // each kv head has memory of its own
};

// A prompt, some tokens, a fork, a cut, on four workers placed on that machine.
Outcome run_on(const std::string& topology) {
  ThreadPool pool(Topology::synthetic(topology), 4);
  const auto model = Model::load(*tiny_model(8, 4).file, pool, {Compute::kF32, 2048});
  const HostServices::Log no_log;
  HostServices services(pool, no_log);
  PluginSearch search;
  search.levels.push_back({"tests", {std::string(KVASIR_BINARY_DIR) + "/plugins"}});
  PluginRegistry registry(search, services);
  EngineOptions options;
  options.max_context = 1024;
  options.max_sequences = 2;
  Engine engine(*model,
                build_pipeline(parse_strategy(kToml, "test.toml", {}, {}), registry, services),
                pool, services, options);
  Outcome outcome;
  const SequenceId seq = engine.open();
  outcome.logits.push_back(prefill(engine, seq, some_tokens(300, 3)));
  for (TokenId token = 0; token < 20; ++token) outcome.logits.push_back(decode(engine, seq, token));
  const SequenceId fork = engine.fork(seq);
  outcome.logits.push_back(decode(engine, fork, 7));
  engine.truncate(seq, 111);
  outcome.logits.push_back(decode(engine, seq, 8));
  const kvasir_kv_format format = engine.pipeline().storage->formats()[0];
  outcome.parts_apart = format.k_head_stride >= 2u << 20;
  return outcome;
}

}  // namespace

TEST_SUITE_BEGIN("core/runtime/placement");

TEST_CASE("logits do not depend on how many memory nodes the workers are on") {
  const Outcome one = run_on("numa:1 core:4 pu:1");
  CHECK_FALSE(one.parts_apart);
  for (const char* topology : {"numa:2 core:2 pu:1", "numa:4 core:1 pu:1"}) {
    CAPTURE(std::string(topology));
    const Outcome several = run_on(topology);
    CHECK(several.parts_apart);
    CHECK(several.logits == one.logits);
  }
}
