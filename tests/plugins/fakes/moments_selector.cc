// A selector that asks for every call there is and writes down the moments they come at
// (moments.h). It keeps all candidates.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/moments.h"

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

class MomentsSelector {
 public:
  static constexpr kvasir_desc kDesc = fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.moments", {},
                                                 {.needs = KVASIR_NEED_MASS | KVASIR_NEED_INPUT});

  MomentsSelector(const sdk::Host&, const sdk::Options&) {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == kMomentsExtension ? &moments_ : nullptr;
  }
  void bind(const kvasir_geometry& geometry) { n_heads_ = geometry.n_kv_heads; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = KVASIR_UNIT_BLOCK;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    out.mass = {KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE,
                KVASIR_MASS_TOKEN,
                KVASIR_MASS_SUM_KV_HEAD,
                KVASIR_PART_ALL,
                KVASIR_ALL_QUERIES,
                0};
    out.plans = {KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_CHUNK_END | KVASIR_PLAN_AT_STEP_END, 0,
                 KVASIR_ACTION_RESTRICT, 0};
    out.speculation.layers_ahead = 1;
    out.prefill = {KVASIR_SLICE_CHUNK, KVASIR_ALL_QUERIES, 0, 0};
  }
  void layout(kvasir_layout& out) const {
    out.flags = KVASIR_LAYOUT_WANT_PROMPT_END | KVASIR_LAYOUT_WANT_FINAL;
    out.record_bytes = 4;
  }

  void update(const sdk::Step& step, const sdk::UpdateItems&) { note("update", step); }
  void prefill(const sdk::Step& step, const kvasir_sel_in&) { note("prefill", step); }
  void speculate(const sdk::Step& step, uint32_t, const kvasir_sel_in&, kvasir_selection& out) {
    keep_all("speculate", step, out);
  }
  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) {
    keep_all("select", step, out);
  }
  void observe(const sdk::Step& step, const kvasir_mass&) { note("observe", step); }
  void evict_plan(const sdk::Step& step, kvasir_selection& out) {
    keep_all("evict_plan", step, out);
  }

 private:
  void keep_all(const char* function, const sdk::Step& step, kvasir_selection& out) {
    note(function, step);
    sdk::flag_lists(out, KVASIR_SCOPE_KV_HEAD, step.n_seqs() * n_heads_, KVASIR_LIST_ALL);
  }
  void note(const char* function, const sdk::Step& step) {
    for (uint32_t r = 0; r < step.n_seqs(); ++r)
      moments_.emplace(function, step.moment(), step.seq(r).phase);
  }

  uint32_t n_heads_ = 1;
  Moments moments_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.moments", "0.1.0", MomentsSelector)
