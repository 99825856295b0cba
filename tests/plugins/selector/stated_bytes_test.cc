// What plugins say of their own memory before a run (limits(), layout()), beside what the heap
// shows on a sequence that fills the context.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/tables.h"
#include "tests/plugins/selector/eviction_scene.h"
#include "tests/plugins/selector/key_scene.h"

namespace {
using namespace kvasir::test;

constexpr uint64_t kFirstIsDense = 1;

// Two layers, of which the first is dense; a sequence at a time.
kvasir_geometry one_sparse_layer(uint32_t max_context) {
  kvasir_geometry geometry = eviction_geometry(4, 16);
  geometry.max_context = max_context;
  geometry.max_sequences = 1;
  geometry.dense_layers = &kFirstIsDense;
  return geometry;
}

TEST_SUITE("plugins/selector/stated") {
  TEST_CASE("votes and the latest query's mass: nothing stays, and the most is what they say") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kN = 1u << 20;
    const auto check = [&](const std::string& name, uint32_t n_lists, uint32_t reduce = 0) {
      CAPTURE(name);
      kvasir_geometry geometry = one_sparse_layer(kN);
      geometry.gqa_reduce = reduce;
      EvictionScene scene(name, {}, geometry);
      scene.prompt(0, kN);
      const auto mass = random_mass(n_lists, kN, 1);
      const size_t before = heap_bytes();
      REQUIRE(scene.observe(1, mass) == KVASIR_OK);
      CHECK(scene.limits.memory.state_bytes == 0);
      CHECK(
          static_cast<double>(heap_bytes() - before) ==
          doctest::Approx(static_cast<double>(scene.limits.memory.state_peak_bytes)).epsilon(0.01));
    };
    check("snapkv", 2);
    check("snapkv", 4, KVASIR_REDUCE_MAX);
    check("pyramidkv", 2);
    check("preselect", 1);
    check("tova", 1);
  }

  TEST_CASE("magicpig: tables, and what stands beside them while the last head is hashed") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kN = 20000, kBits = 6, kTables = 20;
    for (const std::string layout : {"compact", "csr"}) {
      CAPTURE(layout);
      kvasir_geometry geometry = one_sparse_layer(kN);
      geometry.block_size = 256;  // few items: the scene's list of them is on the heap, too
      KeyScene scene(geometry, normal_floats(size_t{kN} * 2 * 8, 1), normal_floats(4 * 8, 2));
      scene.candidates(4, kN - 16);
      FakeHost host(1);
      PluginInstance<kvasir_selector> selector(
          host, "magicpig",
          {{"K", int64_t{kBits}}, {"L", int64_t{kTables}}, {"table_layout", layout}});
      size_t most = 0;
      const size_t before = heap_bytes();
      host.before_tasks = [&] { most = std::max(most, heap_bytes() - before); };
      selector.bind(scene.geometry());
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      const uint64_t id = 1;
      REQUIRE(selector->base.seq_open(selector.self(), &id, 1, selector.err()) == KVASIR_OK);
      REQUIRE(scene.prompt_end(selector) == KVASIR_OK);
      const auto stays = static_cast<double>(heap_bytes() - before);
      CHECK(stays == doctest::Approx(static_cast<double>(limits.memory.state_bytes)).epsilon(0.02));
      // Seen when the last head's keys are hashed: its table and list of tokens are still to come.
      using kvasir::magicpig::Segment;
      using kvasir::magicpig::TableLayout;
      const uint64_t to_come =
          Segment::bytes(layout == "csr" ? TableLayout::kCsr : TableLayout::kCompact, kBits,
                         kTables, kN - 20) +
          uint64_t{kN} * sizeof(uint32_t);
      CHECK(static_cast<double>(most + to_come) ==
            doctest::Approx(static_cast<double>(limits.memory.state_peak_bytes)).epsilon(0.02));
    }
  }

  TEST_CASE("infinigen: sums per head, and counters of the pool") {
    if (!counts_heap_bytes()) return;
    const auto check = [&](const OptionValues& options, kvasir_geometry geometry, double within) {
      FakeHost host;
      PluginInstance<kvasir_selector> selector(host, "infinigen", options);
      const size_t before = heap_bytes();
      selector.bind(geometry);
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      const uint64_t id = 1;
      REQUIRE(selector->base.seq_open(selector.self(), &id, 1, selector.err()) == KVASIR_OK);
      kvasir_step_seq seq{};
      seq.id = 1, seq.kv_len = geometry.max_context, seq.unit_end = geometry.max_context / 3;
      kvasir_step step{};
      seq.phase = KVASIR_PHASE_DECODE;
      step.moment = KVASIR_MOMENT_ATTENDED, step.n_seqs = 1, step.seq_size = sizeof seq,
      step.seqs = &seq;
      step.layer = 1;
      const std::vector<uint64_t> offsets(geometry.n_kv_heads + 1);
      kvasir_mass mass{};
      mass.n_lists = geometry.n_kv_heads, mass.list_offsets = offsets.data();
      for (const uint32_t more : {0u, 1u, 2u}) {  // growing, it stays within what was said
        seq.unit_end += more;
        REQUIRE(selector->observe(selector.self(), &step, &mass, selector.err()) == KVASIR_OK);
      }
      CHECK(static_cast<double>(heap_bytes() - before) ==
            doctest::Approx(static_cast<double>(limits.memory.state_bytes)).epsilon(within));
    };
    check({{"pool_limit", int64_t{9}}}, one_sparse_layer(1u << 20), 0.01);
    kvasir_geometry deep = one_sparse_layer(64);
    deep.n_layers = 60;
    deep.n_kv_heads = deep.n_q_heads = 8;
    deep.head_dim = deep.v_dim = 128;
    check({{"refresh_every", int64_t{8}}}, deep, 0.05);
  }

  TEST_CASE("dynamic: sums of queries that the last chunk does not hold") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kBlocks = 200, kBlock = 256;
    kvasir_geometry geometry = one_sparse_layer(kBlocks * kBlock);
    geometry.block_size = kBlock;
    FakeHost host;
    const auto layout_with = [&](const OptionValues& options, bool feed) {
      PluginInstance<kvasir_representative> plugin(host, "dynamic", options);
      plugin.bind(geometry);
      kvasir_layout layout{};
      REQUIRE(plugin->layout(plugin.self(), &layout, plugin.err()) == KVASIR_OK);
      if (!feed) return layout;
      const uint64_t id = 1;
      REQUIRE(plugin->base.seq_open(plugin.self(), &id, 1, plugin.err()) == KVASIR_OK);
      kvasir_step_seq seq{};
      seq.id = 1, seq.kv_len = kBlocks * kBlock - 1, seq.prompt_end = kBlocks * kBlock;
      kvasir_step step{};
      seq.phase = KVASIR_PHASE_PREFILL;
      step.moment = KVASIR_MOMENT_ATTENDED, step.n_seqs = 1, step.seq_size = sizeof seq,
      step.seqs = &seq;
      step.layer = 1;
      const std::vector<float> values(size_t{4} * kBlock, 0.5f);
      const kvasir_view mass = kvasir::sdk::host_view(values.data(), {4, kBlock});
      std::vector<kvasir_update_item> items;
      for (uint32_t block = 0; block < kBlocks; ++block)
        items.push_back({0, block, 0, 0, kBlock, KVASIR_ITEM_MASS, nullptr, &mass});
      const size_t before = heap_bytes();
      REQUIRE(plugin->update(plugin.self(), &step, items.data(), kBlocks, sizeof items[0],
                             plugin.err()) == KVASIR_OK);
      CHECK(static_cast<double>(heap_bytes() - before) ==
            doctest::Approx(static_cast<double>(layout.memory.state_peak_bytes)).epsilon(0.05));
      return layout;
    };
    CHECK(layout_with({}, true).memory.state_bytes == 0);
    CHECK(layout_with({{"mass", std::string("window")}}, false).memory.state_peak_bytes == 0);
  }
}

}  // namespace
