// A selector with a list per query block (lists.h); what its lists leave out it may contribute
// (stand_in.h). Calls of select() and observe(): calls.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/lists.h"

#include "tests/plugins/fakes/calls.h"
#include "tests/plugins/fakes/fake.h"
#include "tests/plugins/fakes/stand_in.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kUnits[] = {"block", "token"};
// All: by the flag of the list, every: by index, one_list: for all queries of a slice.
constexpr const char* kKeep[] = {"some", "all", "every", "one_list", "contributes"};
constexpr const char* kFaults[] = {"none", "lists_missing", "nan", "other_block"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "unit", .help = "of its lists"}, kUnits, 0),
    sdk::enum_option({.key = "keep", .help = "what the lists name"}, kKeep, 0),
    sdk::enum_option({.key = "fault", .help = "what goes wrong"}, kFaults, 0),
    sdk::int_option({.key = "slice", .help = "0 = the chunk"}, 0, 0, 1 << 20),
    sdk::int_option({.key = "query_block", .help = "queries per list"}, 0, 0, 1 << 20),
    sdk::int_option({.key = "dense_last", .help = "-1 = all queries"}, 0, -1, 1 << 20)};

class ListsSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.lists", kOptions,
                {.needs = KVASIR_NEED_INPUT | KVASIR_NEED_KEYS | KVASIR_NEED_CONTRIBUTION |
                          KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS});
  ListsSelector(const sdk::Host&, const sdk::Options& o)
      : keep_(kKeep[o.choice("keep")]),
        fault_(kFaults[o.choice("fault")]),
        unit_(o.choice("unit")),
        wish_{o.u32("slice") ? o.u32("slice") : KVASIR_SLICE_CHUNK, 0, o.u32("query_block"),
              static_cast<uint32_t>(o.i64("dense_last"))} {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == kCallsExtension ? &calls_ : nullptr;
  }
  void bind(const kvasir_geometry& geometry) { g_ = geometry; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = unit_, out.scope = KVASIR_SCOPE_KV_HEAD, out.prefill = wish_;
    out.mass = {3, KVASIR_MASS_TOKEN, KVASIR_MASS_PER_Q_HEAD, 0, KVASIR_ALL_QUERIES, 0};
  }

  void select(const sdk::Step& step, const kvasir_sel_in& in, kvasir_selection& out) {
    const float* x = sdk::floats(in.x, "x");
    auto& seen = note(calls_, RecordedCall::kSelect, step).x;
    const uint32_t size = keep_ == "one_list" ? 0 : out.query_block;
    std::vector<std::vector<uint32_t>> lists;
    for (uint32_t s = 0, list = 0; s < step.n_seqs(); ++s) {
      const kvasir_step_seq& seq = step.seq(s);
      seen.insert(seen.end(), x + seq.q_begin * in.x.shape[1],
                  x + (seq.q_begin + seq.n_q) * in.x.shape[1]);
      const uint32_t block = size ? size : seq.n_q, n_lists = (seq.n_q + block - 1) / block;
      for (uint32_t i = 0; i < g_.n_kv_heads * n_lists; ++i) {
        const uint32_t head = i / n_lists, at = i % n_lists * block;
        const uint32_t end = size ? in.list_end[list + i % n_lists] : seq.unit_end;
        std::vector<uint32_t> left, &kept = lists.emplace_back();
        const sdk::Candidates from = step.candidates(s, head);
        for (uint64_t c = 0; c < from.size() && from[c] < end; ++c) {
          const bool keeps = keep_ == "every" ||
                             list_names(step.layer(), head, seq.kv_len - seq.n_q + at, from[c]);
          (keeps ? kept : left).push_back(from[c]);
        }
        for (uint32_t j = at; keep_ == "contributes" && j < std::min(at + block, seq.n_q); ++j)
          stand_in(g_, unit_, in, in.leases + in.lease_offsets[s], head, seq.q_begin + j, left,
                   out);
      }
      list += n_lists;
    }
    sdk::write_lists(out, KVASIR_SCOPE_KV_HEAD, lists);
    if (keep_ == "all") sdk::flag_lists(out, out.scope, out.n_lists, KVASIR_LIST_ALL);
    if (keep_ == "one_list") out.query_block = 0;
    if (fault_ == "other_block") out.query_block += 1;
    if (fault_ == "lists_missing") out.n_lists -= 1;
    if (fault_ == "nan") sdk::floats(out.lse, "lse")[step.seq(0).q_begin * g_.n_q_heads] = NAN;
    if (keep_ == "contributes" || fault_ == "nan") out.flags = KVASIR_SELECTION_CONTRIBUTES;
  }
  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    RecordedCall& call = note(calls_, RecordedCall::kObserve, step);
    call.n_queries.assign(mass.n_queries, mass.n_queries + step.n_seqs());
    call.offsets.assign(mass.list_offsets, mass.list_offsets + mass.n_lists + 1);
    call.index.assign(mass.index, mass.index + call.offsets.back());
    const float* value = sdk::floats(mass.value, "mass");
    call.value.assign(value, value + call.offsets.back());
  }

 private:
  std::string_view keep_, fault_;
  uint32_t unit_;
  kvasir_prefill_wish wish_;
  kvasir_geometry g_{};
  Calls calls_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.lists", "0.1.0", ListsSelector)
