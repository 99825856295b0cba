// duoattention: which heads stream, and what is said of them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/core/runtime/support.h"
#include "tests/support/effort.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

kvasir_geometry heads_of(uint32_t n_layers, uint32_t n_kv_heads) {
  kvasir_geometry geometry = small_geometry();
  geometry.n_layers = n_layers;
  geometry.n_kv_heads = n_kv_heads;
  geometry.n_q_heads = 2 * n_kv_heads;
  return geometry;
}

// List flags of one layer, for a batch of n_seqs sequences; plan: what evict_plan() keeps.
std::vector<uint32_t> flags_of(Selector& selector, const kvasir_geometry& geometry, uint32_t layer,
                               uint32_t n_seqs = 1, bool plan = false) {
  const std::vector<kvasir_step_seq> seqs(n_seqs);
  kvasir_step step{};
  step.struct_size = sizeof step;
  step.layer = layer;
  step.n_seqs = n_seqs;
  step.seq_size = sizeof seqs[0];
  step.seqs = seqs.data();
  const kvasir_sel_in in{};
  SelectionBuffer out(KVASIR_UNIT_TOKEN, KVASIR_SCOPE_KV_HEAD, n_seqs * geometry.n_kv_heads, 0);
  REQUIRE((plan ? selector->evict_plan(selector.self(), &step, &out.selection, selector.err())
                : selector->select(selector.self(), &step, &in, &out.selection, selector.err())) ==
          KVASIR_OK);
  CHECK(out.selection.n_lists == n_seqs * geometry.n_kv_heads);
  CHECK(out.selection.scope == KVASIR_SCOPE_KV_HEAD);
  if (!plan) CHECK(out.selection.reuse_steps == UINT32_MAX);
  for (uint32_t i = 0; i < out.selection.n_lists; ++i) CHECK(out.list(i).empty());
  return out.list_flags;
}

// Which heads stream, one character each, layers apart.
std::string streaming(const OptionValues& options, const kvasir_geometry& geometry) {
  FakeHost host;
  Selector selector(host, "duoattention", options);
  REQUIRE_MESSAGE(selector.status() == KVASIR_OK, selector.text());
  selector.bind(geometry);
  std::string out;
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer) {
    if (layer > 0) out += ' ';
    for (const uint32_t flag : flags_of(selector, geometry, layer)) {
      REQUIRE((flag == KVASIR_LIST_NONE || flag == KVASIR_LIST_ALL));
      out += flag == KVASIR_LIST_NONE ? 's' : '.';
    }
  }
  return out;
}

std::string refusal(const OptionValues& options, const kvasir_geometry& geometry) {
  FakeHost host;
  Selector selector(host, "duoattention", options);
  REQUIRE(selector.status() == KVASIR_OK);
  CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) == KVASIR_ERR_INVALID);
  return selector.text();
}

TEST_SUITE("plugins/selector/duoattention") {
  TEST_CASE("the heads of the smallest gates in the whole model stream") {
    const TempDir dir;
    const std::string file = dir.write("heads.tsv", "0.9\t0.1\t0.5\n0.05\t1\t0.4\n");
    const auto at = [&](double sparsity) {
      return streaming({{"head_file", file}, {"sparsity", sparsity}}, heads_of(2, 3));
    };
    CHECK(at(0.0) == "... ...");
    CHECK(at(0.17) == "... s..");
    CHECK(at(0.5) == ".s. s.s");
    CHECK(at(1.0) == "sss sss");
    CHECK(streaming({{"head_file", file}}, heads_of(2, 3)) == at(0.5));
  }

  TEST_CASE("of equal gates the lower layer's stream, there the lower head") {
    const TempDir dir;
    const std::string file = dir.write("heads.tsv", "0 1 1\n1 1 0\n");
    CHECK(streaming({{"head_file", file}, {"sparsity", 0.5}}, heads_of(2, 3)) == "ss. ..s");
    CHECK(streaming({{"head_file", file}, {"sparsity", 0.67}}, heads_of(2, 3)) == "sss ..s");
  }

  TEST_CASE("a share means the nearest number of heads") {
    const auto count = [](double sparsity, uint32_t n_layers, uint32_t n_kv_heads) {
      const std::string all = streaming({{"sparsity", sparsity}}, heads_of(n_layers, n_kv_heads));
      return std::count(all.begin(), all.end(), 's');
    };
    for (int hundredths = 0; hundredths <= 100; ++hundredths)
      CHECK(count(hundredths / 100.0, 50, 2) == hundredths);
    CHECK(count(0.333, 3, 1) == 1);
    CHECK(count(0.666, 3, 1) == 2);
  }

  TEST_CASE("without a file the first heads of each layer stream, and a warning says so") {
    CHECK(streaming({{"sparsity", 0.5}}, heads_of(3, 4)) == "ss.. ss.. ss..");
    FakeHost host(1);
    Selector selector(host, "duoattention");
    selector.bind(heads_of(3, 4));
    REQUIRE(host.lines().size() == 1);
    CHECK(host.lines()[0].find("head_file") != std::string::npos);
  }

  TEST_CASE("every sequence of a batch, and an eviction plan, get the same lists") {
    FakeHost host;
    Selector selector(host, "duoattention", {{"evict", int64_t{1}}});
    const kvasir_geometry geometry = heads_of(2, 2);
    selector.bind(geometry);
    const std::vector<uint32_t> one = {KVASIR_LIST_NONE, KVASIR_LIST_ALL};
    const std::vector<uint32_t> three = {KVASIR_LIST_NONE, KVASIR_LIST_ALL,  KVASIR_LIST_NONE,
                                         KVASIR_LIST_ALL,  KVASIR_LIST_NONE, KVASIR_LIST_ALL};
    CHECK(flags_of(selector, geometry, 1) == one);
    CHECK(flags_of(selector, geometry, 1, 3) == three);
    CHECK(flags_of(selector, geometry, 1, 1, true) == one);
    CHECK(flags_of(selector, geometry, 1, 3, true) == three);
  }

  TEST_CASE("limits: exact tokens per kv head, no budget, plans only to evict") {
    for (const bool evict : {false, true}) {
      FakeHost host;
      Selector selector(host, "duoattention", {{"evict", int64_t{evict}}});
      selector.bind(heads_of(2, 2));
      kvasir_sel_limits limits = blank_limits();
      REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
      CHECK(limits.unit == KVASIR_UNIT_TOKEN);
      CHECK(limits.scope == KVASIR_SCOPE_KV_HEAD);
      CHECK(limits.max_units == KVASIR_NO_LIMIT);
      CHECK(limits.plans.at == (evict ? KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_STEP_END : 0u));
      CHECK(limits.plans.action == KVASIR_ACTION_EVICT);
    }
  }

  TEST_CASE("evicting frees the memory of streaming heads, and of them alone") {
    constexpr uint32_t kSink = 8, kWindow = 24;
    const uint32_t n_prompt = few_cases() ? 61 : 400;
    const auto bytes = [&](bool evict, double sparsity, uint32_t n_decoded) {
      Bench bench(8, 2);
      const auto engine = bench.engine(
          "[cache]\nblock_size = 8\nsink_tokens = 8\nwindow_tokens = 24\n"
          "[selector]\nplugin = 'kvasir.duoattention'\nsparsity = " +
          std::to_string(sparsity) + "\nevict = " + (evict ? "true" : "false") + "\n");
      const auto seq = engine->open();
      prefill(*engine, seq, some_tokens(n_prompt));
      for (uint32_t i = 0; i < n_decoded; ++i) decode(*engine, seq, 1);
      return static_cast<double>(engine->kv_bytes(seq));
    };
    for (const uint32_t n_decoded : {0u, few_cases() ? 23u : 50u}) {
      if (few_cases() && n_decoded == 0) continue;
      const double all = bytes(false, 0.5, n_decoded), n = n_prompt + n_decoded;
      CHECK(bytes(true, 0.0, n_decoded) == all);
      for (const double sparsity : {0.5, 1.0}) {
        const double seen = (1 - sparsity) * n + sparsity * (kSink + kWindow);
        const double kept = bytes(true, sparsity, n_decoded) / all * n;
        CHECK(kept >= seen);
        CHECK(kept <= seen + 2 * 8 + 1);  // two blocks on the edges
      }
    }
  }

  TEST_CASE("a head file that does not fit the model is refused by name, line and reason") {
    const TempDir dir;
    const kvasir_geometry geometry = heads_of(2, 2);
    const auto text = [&](const std::string& content) {
      const std::string file = dir.write("heads.tsv", content);
      const std::string out = refusal({{"head_file", file}}, geometry);
      CHECK(out.find(file) != std::string::npos);
      return out;
    };
    CHECK(text("").find("0 lines") != std::string::npos);
    CHECK(text("1 2\n").find("2 layers") != std::string::npos);
    CHECK(text("1 2\n3 4\n5 6\n").find("more lines") != std::string::npos);
    for (const char* line : {"3", "3 4 5", "3 x", "3 nan", "3 inf", "", "3, 4"}) {
      const std::string out = text(std::string("1 2\n") + line + "\n");
      CHECK_MESSAGE(out.find("line 2") != std::string::npos, line, ": ", out);
      CHECK(out.find("2 numbers") != std::string::npos);
    }
    CHECK(refusal({{"head_file", dir.path("none.tsv")}}, geometry).find("cannot be opened") !=
          std::string::npos);
    CHECK(streaming({{"head_file", dir.write("heads.tsv", "1 2\n3 4\n\n")}}, geometry) == "ss ..");
  }
}

}  // namespace
