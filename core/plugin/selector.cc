// Calls of a selector, and the checks of what it says about itself.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {

Selector::Selector(const OpenPlugin& plugin, const HostServices& services,
                   const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_SELECTOR, abi_0_1::kSelectorBytes) {
  if (!table().limits) defect("create", "its selector has no limits()");
  if (table().layout && !table().update) defect("create", "its selector has layout(), no update()");
}

const kvasir_selector& Selector::table() const {
  return reinterpret_cast<const kvasir_selector&>(base());
}

bool Selector::has_update() const { return table().update != nullptr; }
bool Selector::has_prefill() const { return table().prefill != nullptr; }
bool Selector::has_speculate() const { return table().speculate != nullptr; }
bool Selector::has_select() const { return table().select != nullptr; }
bool Selector::has_observe() const { return table().observe != nullptr; }
bool Selector::has_evict_plan() const { return table().evict_plan != nullptr; }

void Selector::read_limits() {
  limits_ = {};
  limits_.struct_size = sizeof(limits_);
  control_call("limits",
               [&](kvasir_err* err) { return table().limits(base().self, &limits_, err); });
  check_limits();
  layout_ = {};
  if (!table().layout) return;
  layout_.struct_size = sizeof(layout_);
  control_call("layout",
               [&](kvasir_err* err) { return table().layout(base().self, &layout_, err); });
  check_layout(layout_, /*needs_records=*/false);
}

void Selector::check_limits() const {
  const kvasir_sel_limits& l = limits_;
  const auto in_set = [&](uint32_t value, uint32_t set, const char* name) {
    if (value & ~set) defect("limits", std::string(name) + " has unknown bits");
  };
  const auto at_most = [&](uint32_t value, uint32_t last, const char* name) {
    if (value > last) defect("limits", std::string(name) + " = " + std::to_string(value));
  };
  at_most(l.unit, KVASIR_UNIT_TOKEN, "unit");
  at_most(l.scope, KVASIR_SCOPE_Q_HEAD, "scope");
  in_set(l.flags,
         KVASIR_LIMIT_OBSERVE_WRITES_SLAB | KVASIR_LIMIT_WANT_PROMPT_END |
             KVASIR_LIMIT_PREFILL_SELECT | KVASIR_LIMIT_ZERO_UNITS,
         "flags");
  in_set(l.plan_at, KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_CHUNK_END | KVASIR_PLAN_AT_STEP_END,
         "plan_at");
  at_most(l.action, KVASIR_ACTION_EVICT, "action");
  in_set(l.mass_at, KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE, "mass_at");
  at_most(l.mass_level, KVASIR_MASS_TOKEN, "mass_level");
  at_most(l.mass_reduce, KVASIR_MASS_SUM_ALL, "mass_reduce");
  at_most(l.mass_part, KVASIR_PART_WINDOW, "mass_part");
  at_most(l.pos_mode, KVASIR_POS_CONSTANT, "pos_mode");
  if (l.reserved != 0) defect("limits", "reserved is not zero");
  check_limits_against_slots();
}

// What limits() asks for must have a function that receives it.
void Selector::check_limits_against_slots() const {
  const kvasir_sel_limits& l = limits_;
  const auto demand = [&](bool is_met, const char* what) {
    if (!is_met) defect("limits", what);
  };
  demand(l.plan_at == 0 || has_evict_plan(), "plan_at is set, but there is no evict_plan()");
  demand(l.plan_at == 0 || l.action != 0,
         "plan_at is set, but action is neither RESTRICT nor EVICT");
  demand(l.mass_at == 0 || has_observe(), "mass_at is set, but there is no observe()");
  demand(l.mass_at == 0 || l.mass_level != KVASIR_MASS_NONE, "mass_at is set, mass_level is NONE");
  demand(l.mass_at == 0 || l.mass_level == KVASIR_MASS_ROWS || (desc().needs & KVASIR_NEED_MASS),
         "it asks for attention mass without KVASIR_NEED_MASS");
  demand(l.speculate_ahead == 0 || has_speculate(), "speculate_ahead without speculate()");
  demand(l.prefill_last_queries == 0 || has_prefill(), "prefill_last_queries without prefill()");
  demand(!(l.flags & KVASIR_LIMIT_PREFILL_SELECT) || has_select(),
         "PREFILL_SELECT without select()");
  demand(!(l.flags & KVASIR_LIMIT_OBSERVE_WRITES_SLAB) || table().layout,
         "OBSERVE_WRITES_SLAB without layout()");
  demand(!(l.flags & KVASIR_LIMIT_ZERO_UNITS) || l.max_units == 0,
         "ZERO_UNITS although max_units is above 0");
  demand(l.pos_mode != KVASIR_POS_CONSTANT || (desc().needs & KVASIR_NEED_UNROTATED_K),
         "POS_CONSTANT without KVASIR_NEED_UNROTATED_K");
}

kvasir_status Selector::update(const kvasir_step& step,
                               const std::vector<kvasir_update_item>& items) {
  require(has_update(), "update");
  return step_call("update", &step, [&](kvasir_err* err) {
    return table().update(base().self, &step, items.data(), static_cast<uint32_t>(items.size()),
                          sizeof(kvasir_update_item), err);
  });
}

kvasir_status Selector::prefill(const kvasir_step& step, const kvasir_sel_in& in) {
  require(has_prefill(), "prefill");
  return step_call("prefill", &step,
                   [&](kvasir_err* err) { return table().prefill(base().self, &step, &in, err); });
}

kvasir_status Selector::speculate(const kvasir_step& step, uint32_t target, const kvasir_sel_in& in,
                                  kvasir_selection& out) {
  require(has_speculate(), "speculate");
  return step_call("speculate", &step, [&](kvasir_err* err) {
    return table().speculate(base().self, &step, target, &in, &out, err);
  });
}

kvasir_status Selector::select(const kvasir_step& step, const kvasir_sel_in& in,
                               kvasir_selection& out) {
  require(has_select(), "select");
  return step_call("select", &step, [&](kvasir_err* err) {
    return table().select(base().self, &step, &in, &out, err);
  });
}

kvasir_status Selector::observe(const kvasir_step& step, const kvasir_mass& mass) {
  require(has_observe(), "observe");
  return step_call("observe", &step, [&](kvasir_err* err) {
    return table().observe(base().self, &step, &mass, err);
  });
}

kvasir_status Selector::evict_plan(const kvasir_step& step, kvasir_selection& out) {
  require(has_evict_plan(), "evict_plan");
  return step_call("evict_plan", &step, [&](kvasir_err* err) {
    return table().evict_plan(base().self, &step, &out, err);
  });
}

}  // namespace kvasir
