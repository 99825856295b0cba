// A selector that writes down when it is asked (calls.h). It keeps every `every`-th candidate
// (u % every == 0), or with `rows` whole rows: all, none, or none for odd heads and all for even
// ones; `weight` non-zero: with log-weight -weight on every listed index.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/calls.h"

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kUnits[] = {"block", "token"};
constexpr const char* kRowKinds[] = {"listed", "all", "none", "mixed", "half_listed"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "unit", .help = "of its rows"}, kUnits, 0),
    sdk::enum_option({.key = "rows", .help = "what rows look like"}, kRowKinds, 0),
    sdk::int_option({.key = "every", .help = "candidates u with u % every = 0"}, 2, 1, 1 << 30),
    sdk::int_option({.key = "reuse_steps", .help = "as select() says"}, 0, 0, UINT32_MAX),
    sdk::int_option({.key = "max_units", .help = "as limits() says; 0: no limit"}, 0, 0, 1 << 30),
    sdk::float_option({.key = "weight", .help = "listed indices weigh less"}, 0.0, 0.0, 1e9)};

class CallsSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.calls", kOptions,
                {.needs = KVASIR_NEED_LOG_WEIGHT | KVASIR_NEED_TOKEN_ROWS});

  CallsSelector(const sdk::Host&, const sdk::Options& o)
      : unit_(o.choice("unit")),
        rows_(kRowKinds[o.choice("rows")]),
        every_(o.u32("every")),
        reuse_steps_(o.u32("reuse_steps")),
        max_units_(o.u32("max_units")),
        weight_(static_cast<float>(o.f64("weight"))) {}
  const void* get_extension(const char* id) {
    return std::string_view(id) == kCallsExtension ? &calls_ : nullptr;
  }
  void bind(const kvasir_geometry& geometry) { n_heads_ = geometry.n_kv_heads; }
  void limits(kvasir_sel_limits& out) const {
    out.unit = unit_;
    out.scope = KVASIR_SCOPE_KV_HEAD;
    if (max_units_ != 0) out.max_units = max_units_;
  }

  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) {
    note(calls_, RecordedCall::kSelect, step);
    const auto n_rows = step.n_seqs() * n_heads_;
    sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_rows,
                       [&](uint32_t row) { return uint64_t{kept(step, row).size()}; });
    for (uint32_t row = 0; row < n_rows; ++row) {
      const std::vector<uint32_t> units = kept(step, row);
      std::copy(units.begin(), units.end(), sdk::list_indices(out, row).begin());
      out.list_flags[row] = flag(row);
    }
    out.reuse_steps = reuse_steps_;
    if (weight_ == 0.0f) return;
    out.weight_width = 1;
    std::fill_n(out.log_weight, out.list_offsets[n_rows], -weight_);
  }

 private:
  uint32_t flag(uint32_t row) const {
    const bool is_odd = row % n_heads_ % 2 != 0;
    if (rows_ == "all" || rows_ == (is_odd ? "half_listed" : "mixed")) return KVASIR_LIST_ALL;
    return rows_ == "none" || rows_ == "mixed" ? KVASIR_LIST_NONE : KVASIR_LIST_LISTED;
  }
  std::vector<uint32_t> kept(const sdk::Step& step, uint32_t row) const {
    const sdk::Candidates from = step.candidates(row / n_heads_, row % n_heads_);
    std::vector<uint32_t> out;
    for (uint64_t i = 0; i < from.size() && flag(row) == KVASIR_LIST_LISTED; ++i)
      if (from[i] % every_ == 0) out.push_back(from[i]);
    return out;
  }

  uint32_t unit_;
  std::string_view rows_;
  uint32_t every_, reuse_steps_, max_units_;
  float weight_;
  uint32_t n_heads_ = 0;
  Calls calls_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.calls", "0.1.0", CallsSelector)
