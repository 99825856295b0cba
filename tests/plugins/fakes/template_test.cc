// The templates that others copy, loaded and called. KVASIR_TEST_STRIDED names another build of the
// same plugin.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Selector = PluginInstance<kvasir_selector>;

std::string template_path() {
  const char* other = std::getenv("KVASIR_TEST_STRIDED");
  return other != nullptr ? other : KVASIR_BINARY_DIR "/test-plugins/templates/strided.so";
}

struct Strided {
  explicit Strided(int64_t stride) : selector(host, template_path(), {{"stride", stride}}) {
    selector.bind(small_geometry());
  }
  kvasir_status select(const kvasir_step& step, SelectionBuffer& out) {
    const kvasir_sel_in in{};
    return selector->select(selector.self(), &step, &in, &out.selection, selector.err());
  }
  FakeHost host;
  Selector selector;
};

TEST_CASE("template: every n-th candidate, of the range or of a list") {
  Strided strided(3);
  kvasir_sel_limits limits = blank_limits();
  limits.struct_size = sizeof limits;
  REQUIRE(strided.selector->limits(strided.selector.self(), &limits, strided.selector.err()) ==
          KVASIR_OK);
  CHECK(limits.unit == KVASIR_UNIT_BLOCK);
  CHECK(limits.scope == KVASIR_SCOPE_SEQUENCE);
  OneSeqStep step(kDecodeAppended, 60, 1, 9);
  SelectionBuffer whole(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
  REQUIRE(strided.select(step.step, whole) == KVASIR_OK);
  CHECK(violation(whole.selection, 1, 1, 9) == "");
  CHECK(whole.list(0) == std::vector<uint32_t>{1, 4, 7});

  const SelectionBuffer list(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, {{1, 3, 5, 7}});
  step.step.candidates = &list.selection;
  SelectionBuffer subset(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 8);
  REQUIRE(strided.select(step.step, subset) == KVASIR_OK);
  CHECK(subset.list(0) == std::vector<uint32_t>{1, 7});
}

TEST_CASE("template: each sequence of a batch has its own list") {
  Strided strided(2);
  OneSeqStep first(kDecodeAppended, 60, 0, 3);
  const kvasir_step_seq seqs[] = {first.seq, OneSeqStep(kDecodeAppended, 60, 4, 9).seq};
  first.step.n_seqs = 2;
  first.step.seqs = seqs;
  SelectionBuffer both(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 2, 8);
  REQUIRE(strided.select(first.step, both) == KVASIR_OK);
  CHECK(both.selection.n_lists == 2);
  CHECK(both.list(0) == std::vector<uint32_t>{0, 2});
  CHECK(both.list(1) == std::vector<uint32_t>{4, 6, 8});
}

TEST_CASE(
    "template: a small buffer is answered with the needed size and nothing written beyond it") {
  Strided strided(2);
  SelectionBuffer result(KVASIR_UNIT_BLOCK, KVASIR_SCOPE_SEQUENCE, 1, 2);
  CHECK(strided.select(OneSeqStep(kDecodeAppended, 60, 0, 10).step, result) == KVASIR_ERR_CAPACITY);
  CHECK(result.selection.needed == 5);
  CHECK(strided.selector.text() != "");
}

TEST_CASE("template: a host of another major version is refused with a sentence") {
  FakeHost host;
  kvasir_host stranger = *host.host();
  stranger.abi_major += 1;
  kvasir_request request{sizeof request, 0, nullptr};
  kvasir_err err{sizeof err, 0, {}};
  CHECK(entry_of(template_path())(&stranger, &request, &err) == KVASIR_ERR_VERSION);
  CHECK(std::string(err.text) != "");
  CHECK(request.plugin == nullptr);
}

}  // namespace
