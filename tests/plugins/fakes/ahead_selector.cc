// A selector that keeps everything, decided `ahead` layers before, and writes down the attention
// input it is given there (KVASIR_NEED_INPUT; calls.h).
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/calls.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr kvasir_option_schema kOptions[] = {
    sdk::int_option({.key = "ahead", .help = "layers"}, 1, 1, 64)};

class AheadSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.ahead", kOptions, {.needs = KVASIR_NEED_INPUT});

  AheadSelector(const sdk::Host&, const sdk::Options& o) : ahead_(o.u32("ahead")) {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == kCallsExtension ? &calls_ : nullptr;
  }
  void limits(kvasir_sel_limits& out) const {
    out.scope = KVASIR_SCOPE_SEQUENCE;
    out.speculation.layers_ahead = ahead_;
  }

  void speculate(const sdk::Step& step, uint32_t target_layer, const kvasir_sel_in& in,
                 kvasir_selection& out) {
    RecordedCall& call = note(calls_, RecordedCall::kSpeculate, step);
    call.target_layer = target_layer;
    if (in.x.rank != 2 || in.x.shape[0] != step.n_seqs()) sdk::fail_invalid("no attention input");
    const auto* x = static_cast<const float*>(in.x.data);
    call.x.assign(x, x + in.x.shape[0] * in.x.shape[1]);
    keep_all(step, out);
    out.flags = KVASIR_SELECTION_FINAL;
  }
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    keep_all(step, out);
  }

 private:
  static void keep_all(const sdk::Step& step, kvasir_selection& out) {
    sdk::flag_lists(out, KVASIR_SCOPE_SEQUENCE, step.n_seqs(), KVASIR_LIST_ALL);
  }

  uint32_t ahead_;
  Calls calls_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.ahead", "0.1.0", AheadSelector)
