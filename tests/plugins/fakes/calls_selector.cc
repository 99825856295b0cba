// A selector that writes down when it is asked (calls.h). It keeps every `every`-th candidate
// (u % every == 0), or with `lists` whole lists: all, none, or none for odd heads and all for even
// ones; `weight` non-zero: with log-weight -weight on every listed index.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/calls.h"

#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kUnits[] = {"block", "token"};
constexpr const char* kListKinds[] = {"listed", "all", "none", "mixed", "half_listed"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "unit", .help = "of its lists"}, kUnits, 0),
    sdk::enum_option({.key = "lists", .help = "what lists look like"}, kListKinds, 0),
    sdk::int_option({.key = "every", .help = "candidates u with u % every = 0"}, 2, 1, 1 << 30),
    sdk::int_option({.key = "reuse_steps", .help = "as select() says"}, 0, 0, UINT32_MAX),
    sdk::int_option({.key = "max_units", .help = "as limits() says; 0: no limit"}, 0, 0, 1 << 30),
    sdk::float_option({.key = "weight", .help = "listed indices weigh less"}, 0.0, 0.0, 1e9)};

class CallsSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.calls", kOptions,
                {.needs = KVASIR_NEED_LOG_WEIGHT | KVASIR_NEED_TOKEN_ITEMS});

  CallsSelector(const sdk::Host&, const sdk::Options& o)
      : unit_(o.choice("unit")),
        lists_(kListKinds[o.choice("lists")]),
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
    const auto n_lists = step.n_seqs() * n_heads_;
    sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_lists,
                       [&](uint32_t list) { return uint64_t{kept(step, list).size()}; });
    for (uint32_t list = 0; list < n_lists; ++list) {
      const std::vector<uint32_t> units = kept(step, list);
      std::copy(units.begin(), units.end(), sdk::list_indices(out, list).begin());
      out.list_flags[list] = flag(list);
    }
    out.reuse_steps = reuse_steps_;
    if (weight_ == 0.0f) return;
    out.weight_width = 1;
    std::fill_n(out.log_weight, out.list_offsets[n_lists], -weight_);
  }

 private:
  uint32_t flag(uint32_t list) const {
    const bool is_odd = list % n_heads_ % 2 != 0;
    if (lists_ == "all" || lists_ == (is_odd ? "half_listed" : "mixed")) return KVASIR_LIST_ALL;
    return lists_ == "none" || lists_ == "mixed" ? KVASIR_LIST_NONE : KVASIR_LIST_LISTED;
  }
  std::vector<uint32_t> kept(const sdk::Step& step, uint32_t list) const {
    const sdk::Candidates from = step.candidates(list / n_heads_, list % n_heads_);
    std::vector<uint32_t> out;
    for (uint64_t i = 0; i < from.size() && flag(list) == KVASIR_LIST_LISTED; ++i)
      if (from[i] % every_ == 0) out.push_back(from[i]);
    return out;
  }

  uint32_t unit_;
  std::string_view lists_;
  uint32_t every_, reuse_steps_, max_units_;
  float weight_;
  uint32_t n_heads_ = 0;
  Calls calls_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.calls", "0.1.0", CallsSelector)
