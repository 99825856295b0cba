// Selectors that leave everything to the core's forced parts or to the dense path.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

TEST_SUITE("plugins/selector") {
  TEST_CASE("dense has no select and no budget") {
    FakeHost host;
    Selector dense(host, "dense");
    CHECK(dense.desc().id == std::string("kvasir.dense"));
    dense.bind(small_geometry());
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(dense->limits(dense.self(), &limits, dense.err()) == KVASIR_OK);
    CHECK_FALSE(static_cast<bool>(dense->select));
    CHECK_FALSE(static_cast<bool>(dense->update));
    CHECK_FALSE(static_cast<bool>(dense->base.seq_open));
    CHECK(limits.max_units == KVASIR_NO_LIMIT);
    CHECK(limits.mass.at == 0);
  }

  TEST_CASE("streaming selects nothing, in tokens, once for all heads and steps") {
    FakeHost host;
    Selector streaming(host, "streaming");
    streaming.bind(small_geometry());
    kvasir_sel_limits limits = blank_limits();
    REQUIRE(streaming->limits(streaming.self(), &limits, streaming.err()) == KVASIR_OK);
    CHECK(limits.unit == KVASIR_UNIT_TOKEN);
    CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
    CHECK((streaming.desc().needs & KVASIR_NEED_TOKEN_ITEMS) != 0);

    const kvasir_step_seq seqs[3] = {};
    kvasir_step step{};
    step.struct_size = sizeof step;
    step.n_seqs = 3;
    step.seq_size = sizeof seqs[0];
    step.seqs = seqs;
    kvasir_sel_in in{};
    SelectionBuffer out(limits.unit, limits.scope, 3, 0);  // no indices: none are needed
    REQUIRE(streaming->select(streaming.self(), &step, &in, &out.selection, streaming.err()) ==
            KVASIR_OK);
    CHECK(out.selection.n_lists == 3);
    CHECK(out.selection.reuse_steps == UINT32_MAX);
    for (uint32_t i = 0; i < 3; ++i) {
      CHECK(out.list_flags[i] == KVASIR_LIST_NONE);
      CHECK(out.list(i).empty());
    }
  }

  TEST_CASE("a host of another ABI version is refused with a text") {
    FakeHost host;
    kvasir_host other = *host.host();
    other.abi_minor_min = other.abi_minor_max = KVASIR_ABI_MINOR + 1;
    const auto entry = entry_of("dense");
    kvasir_request request{sizeof request, 0, nullptr};
    kvasir_err err{sizeof err, 0, {}};
    CHECK(entry(&other, &request, &err) == KVASIR_ERR_VERSION);
    CHECK(err.code == KVASIR_ERR_VERSION);
    CHECK(std::string(err.text).find("ABI 0.2") != std::string::npos);
    CHECK(request.plugin == nullptr);
  }
}

}  // namespace
