// infllm: what it asks of the host. How it chooses is block_topk's test; what comes of both, with
// the loop around it, is tests/core/runtime/infllm_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

TEST_SUITE("plugins/selector/infllm") {
  TEST_CASE("unrotated keys, slices, and all candidates where the window ends") {
    FakeHost host;
    Selector selector(host, "infllm", {{"budget_blocks", int64_t{16}}});
    CHECK(selector.desc().needs ==
          (KVASIR_NEED_SCORES | KVASIR_NEED_UNROTATED_K | KVASIR_NEED_DISTANCE));
    kvasir_geometry geometry = small_geometry();
    geometry.window_tokens = 40;
    geometry.head_select_shared = 1;
    CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) == KVASIR_OK);
    selector.bind(geometry);
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(selector->limits(selector.self(), &limits, selector.err()) == KVASIR_OK);
    CHECK(limits.prefill.slice_tokens == 512);
    CHECK(limits.positions.mode == KVASIR_POS_CONSTANT);
    CHECK(limits.positions.constant == 39);
    CHECK(limits.max_units == 16);
    CHECK(limits.unit == KVASIR_UNIT_BLOCK);
    CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
  }

  TEST_CASE("a window that is empty or grows is refused") {
    FakeHost host;
    Selector selector(host, "infllm");
    kvasir_geometry geometry = small_geometry();
    CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(selector.text().find("n_local") != std::string::npos);
    geometry.window_tokens = 40;
    geometry.window_mode = KVASIR_WINDOW_PROMPT;
    CHECK(selector->base.validate(selector.self(), &geometry, selector.err()) ==
          KVASIR_ERR_INVALID);
    CHECK(selector.text().find("rolling") != std::string::npos);
  }
}

}  // namespace
