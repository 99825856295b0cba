// A selector that misbehaves on request: `fault` says how, `where` in which function, `from_call`
// from which call of it on. Else it is honest: every second candidate. Probe 0: calls of it.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/plugins/fakes/bad_lists.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kPlaces[] = {"select", "observe", "evict_plan", "update"};
constexpr const char* kUnits[] = {"block", "token"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kListFaults, 0),
    sdk::enum_option({.key = "where", .help = "in which function"}, kPlaces, 0),
    sdk::enum_option({.key = "unit", .help = "of its lists"}, kUnits, 0),
    sdk::int_option({.key = "from_call", .help = "honest calls before that"}, 0, 0, 1 << 30),
    sdk::int_option({.key = "seq", .help = "only in calls that name it, 0 = all"}, 0, 0, 1 << 30)};

class BadSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.bad_selector", kOptions);

  BadSelector(const sdk::Host&, const sdk::Options& o)
      : fault_(kListFaults[o.choice("fault")]),
        where_(kPlaces[o.choice("where")]),
        unit_(o.choice("unit")),
        honest_(o.u32("from_call")),
        seq_(o.u32("seq")) {}
  const void* get_extension(const char* id) { return probe_extension<BadSelector>(id); }
  uint32_t probe(uint32_t) const { return n_calls_; }
  void bind(const kvasir_geometry& geometry) { n_heads_ = geometry.n_kv_heads; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = unit_;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    if (where_ == "observe")
      out.mass.at = KVASIR_MASS_AT_DECODE, out.mass.level = KVASIR_MASS_LISTS;
    if (where_ == "evict_plan") out.plans.at = KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_STEP_END;
    out.plans.action = KVASIR_ACTION_RESTRICT;
  }
  void layout(kvasir_layout&) const {}
  kvasir_status select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) {
    return list("select", step, out);
  }
  kvasir_status evict_plan(const sdk::Step& step, kvasir_selection& out) {
    return list("evict_plan", step, out);
  }
  kvasir_status observe(const sdk::Step&, const kvasir_mass&) { return answer(due("observe")); }
  kvasir_status update(const sdk::Step&, const sdk::UpdateItems&) { return answer(due("update")); }

 private:
  std::string_view due(std::string_view where) {
    return where == where_ && ++n_calls_ > honest_ ? fault_ : "none";
  }
  static kvasir_status answer(std::string_view fault) {
    if (fault == "error") throw sdk::Error(KVASIR_ERR_INTERNAL, "broken on request");
    if (fault == "error_no_text") return KVASIR_ERR_INTERNAL;
    if (fault == "again") return KVASIR_AGAIN;
    return fault == "fallback" ? KVASIR_FALLBACK : fault == "unknown_status" ? 4711 : KVASIR_OK;
  }
  kvasir_status list(std::string_view where, const sdk::Step& step, kvasir_selection& out) {
    const std::string_view fault = names(step, seq_) ? due(where) : "none";
    if (answer(fault) != KVASIR_OK) return answer(fault);
    std::vector<uint32_t> index;
    out.n_lists = step.n_seqs() * n_heads_;
    if (fault == "offsets_unwritten") return KVASIR_OK;
    out.list_offsets[0] = 0;
    for (uint32_t i = 0; i < out.n_lists; ++i) {
      const sdk::Candidates from = step.candidates(i / n_heads_, i % n_heads_);
      for (uint64_t c = 0; c < from.size(); c += 2) index.push_back(from[c]);
      if (fault == "out_of_range") index.push_back(step.seq(i / n_heads_).unit_end);
      if (fault == "duplicate" && from.size() > 0) index.push_back(index.back());
      if (fault == "unsorted" && from.size() > 0) index.push_back(from[0]);
      out.list_flags[i] = fault == "unknown_list_flag" ? 77
                          : fault == "listed_all"      ? KVASIR_LIST_ALL
                                                       : KVASIR_LIST_LISTED;
      out.list_offsets[i + 1] = index.size();
    }
    out.needed = fault == "capacity_for_ever" ? out.capacity + 1 : index.size();
    if (out.needed > out.capacity) throw sdk::Error(KVASIR_ERR_CAPACITY, "never enough");
    if (fault != "index_unwritten") std::copy(index.begin(), index.end(), out.index);
    out.weight_width = fault.ends_with("_weight");
    std::fill_n(out.log_weight, index.size(), fault == "nan_weight" ? NAN : INFINITY);
    spoil_lists(fault, index.size(), out);
    return KVASIR_OK;
  }
  std::string_view fault_, where_;
  uint32_t unit_, honest_, seq_, n_calls_ = 0, n_heads_ = 1;
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.bad_selector", "0.1.0", BadSelector)
