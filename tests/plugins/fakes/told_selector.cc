// A selector that keeps everything and writes down what it is told, in observe() and update()
// (calls.h); the options say what it asks for.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/view.h>

#include "tests/plugins/fakes/calls.h"
#include "tests/plugins/fakes/fake.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kUnits[] = {"block", "token"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "unit", .help = "of its lists"}, kUnits, 0),
    sdk::int_option({.key = "mass_level", .help = "KVASIR_MASS_*; 0: no mass"}, 0, 0, 3),
    sdk::int_option({.key = "mass_reduce", .help = "KVASIR_MASS_PER_Q_HEAD …"}, 0, 0, 2),
    sdk::int_option({.key = "mass_queries", .help = "the prompt's last; 0: all"}, 0, 0, 1 << 20),
    sdk::int_option({.key = "layout_flags", .help = "KVASIR_LAYOUT_*"}, 0, 0, 1 << 20),
    sdk::int_option({.key = "open_bytes", .help = "layout.open_bytes"}, 0, 0, 1 << 20),
    sdk::int_option({.key = "refresh", .help = "layout.refresh_tokens"}, 0, 0, 1 << 20)};

class ToldSelector {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_SELECTOR, "kvasir.test.told", kOptions,
                {.needs = KVASIR_NEED_MASS | KVASIR_NEED_TOKEN_ITEMS,
                 .dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32)});

  ToldSelector(const sdk::Host&, const sdk::Options& o) {
    limits_.struct_size = sizeof limits_;
    limits_.max_units = KVASIR_NO_LIMIT;
    limits_.unit = o.choice("unit");
    limits_.scope = KVASIR_SCOPE_KV_HEAD;
    limits_.mass.level = o.u32("mass_level");
    if (limits_.mass.level) limits_.mass.at = KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE;
    limits_.mass.reduce = o.u32("mass_reduce");
    limits_.mass.last_queries = o.u32("mass_queries") ? o.u32("mass_queries") : UINT32_MAX;
    layout_.struct_size = sizeof layout_;
    layout_.flags = o.u32("layout_flags");
    layout_.open_bytes = o.u32("open_bytes");
    layout_.refresh_tokens = o.u32("refresh");
  }
  const void* get_extension(const char* id) {
    return std::string_view(id) == kCallsExtension ? &calls_ : nullptr;
  }
  void bind(const kvasir_geometry& geometry) { n_heads_ = geometry.n_kv_heads; }
  // As one that keeps state per sequence; it cannot save it.
  void seq_open(std::span<const uint64_t>) {}
  void seq_fork(std::span<const uint64_t>, std::span<const uint64_t>) {}
  void seq_truncate(std::span<const uint64_t>, std::span<const uint32_t>) {}
  void seq_close(std::span<const uint64_t>) {}
  void limits(kvasir_sel_limits& out) const { out = limits_; }
  void layout(kvasir_layout& out) const { out = layout_; }

  void select(const sdk::Step& step, const kvasir_sel_in&, kvasir_selection& out) const {
    sdk::flag_lists(out, KVASIR_SCOPE_KV_HEAD, step.n_seqs() * n_heads_, KVASIR_LIST_ALL);
  }
  void observe(const sdk::Step& step, const kvasir_mass& mass) {
    RecordedCall& call = note(calls_, RecordedCall::kObserve, step);
    call.n_queries.assign(mass.n_queries, mass.n_queries + step.n_seqs());
    call.offsets.assign(mass.list_offsets, mass.list_offsets + mass.n_lists + 1);
    call.index.assign(mass.index, mass.index + call.offsets.back());
    if (const float* value = sdk::floats(mass.value, "mass"))
      call.value.assign(value, value + call.offsets.back());
  }
  void update(const sdk::Step& step, const sdk::UpdateItems& items) {
    RecordedCall& call = note(calls_, RecordedCall::kUpdate, step);
    for (const kvasir_update_item& item : items) {
      call.items.push_back(item);
      call.first_key.push_back(*static_cast<const float*>(item.lease->k));
      call.items.back().lease = nullptr, call.items.back().mass = nullptr;
    }
  }

 private:
  kvasir_sel_limits limits_{};
  kvasir_layout layout_{};
  uint32_t n_heads_ = 1;
  Calls calls_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_SELECTOR, "kvasir.test.told", "0.1.0", ToldSelector)
