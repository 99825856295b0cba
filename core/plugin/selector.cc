// Calls of a selector, and the checks of what it says about itself.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/call.h"
#include "core/plugin/sizes.h"

namespace kvasir {

namespace {

SelectorLimits limits_of(const kvasir_sel_limits& l, const RecordLayout& layout) {
  SelectorLimits out;
  out.unit = l.unit;
  out.scope = l.scope;
  if (layout.flags & KVASIR_LAYOUT_OBSERVE_WRITES) out.flags |= KVASIR_LIMIT_OBSERVE_WRITES_SLAB;
  if (layout.flags & KVASIR_LAYOUT_WANT_PROMPT_END) out.flags |= KVASIR_LIMIT_WANT_PROMPT_END;
  if (l.prefill.slice_tokens != 0) out.flags |= KVASIR_LIMIT_PREFILL_SELECT;
  if (l.max_units == 0) out.flags |= KVASIR_LIMIT_ZERO_UNITS;
  if (l.flags & KVASIR_LIMITS_BEST_SCORES) out.flags |= KVASIR_LIMIT_BEST_SCORES;
  if (l.max_units != KVASIR_NO_LIMIT) out.max_units = l.max_units;
  out.dense_below_tokens = l.dense_below_tokens;
  out.plan_at = l.plans.at;
  out.plan_every_tokens = l.plans.every_tokens;
  out.action = l.plans.action;
  out.speculate_ahead = l.speculation.layers_ahead;
  out.mass_at = l.mass.at;
  out.mass_level = l.mass.level;
  out.mass_reduce = l.mass.reduce;
  out.mass_part = l.mass.part;
  out.mass_last_queries = l.mass.last_queries;
  out.prefill_last_queries = l.prefill.last_queries;
  if (l.prefill.slice_tokens != KVASIR_SLICE_CHUNK)
    out.prefill_slice_tokens = l.prefill.slice_tokens;
  out.query_block = l.prefill.query_block;
  out.dense_last_queries = l.prefill.dense_last_queries;
  out.pos_mode = l.positions.mode;
  out.pos_const = l.positions.constant;
  out.expected_units = l.expected_units;
  out.state_bytes = l.memory.state_bytes;
  out.state_peak_bytes = l.memory.state_peak_bytes;
  return out;
}

}  // namespace

Selector::Selector(const OpenPlugin& plugin, const HostServices& services,
                   const ResolvedOptions& options)
    : Instance(plugin, services, options, KVASIR_KIND_SELECTOR, abi_least::kSelectorBytes),
      table_(copy_table<kvasir_selector>()) {
  if (!table().limits) defect("create", "its selector has no limits()");
  if (table().layout && !table().update) defect("create", "its selector has layout(), no update()");
}

bool Selector::has_update() const { return table().update != nullptr; }
bool Selector::has_prefill() const { return table().prefill != nullptr; }
bool Selector::has_speculate() const { return table().speculate != nullptr; }
bool Selector::has_select() const { return table().select != nullptr; }
bool Selector::has_observe() const { return table().observe != nullptr; }
bool Selector::has_evict_plan() const { return table().evict_plan != nullptr; }

void Selector::read_limits(uint64_t dense_below_tokens) {
  layout_ = {};
  if (table().layout) {
    kvasir_layout layout{};
    layout.struct_size = sizeof(layout);
    control_call("layout",
                 [&](kvasir_err* err) { return table().layout(base().self, &layout, err); });
    layout_ = checked_layout(layout, KVASIR_KIND_SELECTOR);
  }
  kvasir_sel_limits limits{};
  limits.struct_size = sizeof(limits);
  limits.max_units = KVASIR_NO_LIMIT;
  control_call("limits",
               [&](kvasir_err* err) { return table().limits(base().self, &limits, err); });
  check_limits(limits);
  check_limits_against_slots(limits);
  limits_ = limits_of(limits, layout_);
  limits_.dense_below_tokens = std::max(limits_.dense_below_tokens, dense_below_tokens);
  if (checked_) checked_->declared = std::max(limits_.state_bytes, limits_.state_peak_bytes);
}

void Selector::check_limits(const kvasir_sel_limits& l) const {
  const auto in_set = [&](uint32_t value, uint32_t set, const char* name) {
    if (value & ~set) defect("limits", std::string(name) + " has unknown bits");
  };
  const auto at_most = [&](uint32_t value, uint32_t last, const char* name) {
    if (value > last) defect("limits", std::string(name) + " = " + std::to_string(value));
  };
  at_most(l.unit, KVASIR_UNIT_TOKEN, "unit");
  at_most(l.scope, KVASIR_SCOPE_Q_HEAD, "scope");
  in_set(l.plans.at, KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_CHUNK_END | KVASIR_PLAN_AT_STEP_END,
         "plans.at");
  at_most(l.plans.action, KVASIR_ACTION_EVICT, "plans.action");
  in_set(l.mass.at, KVASIR_MASS_AT_PREFILL | KVASIR_MASS_AT_DECODE, "mass.at");
  at_most(l.mass.level, KVASIR_MASS_TOKEN, "mass.level");
  at_most(l.mass.reduce, KVASIR_MASS_SUM_ALL, "mass.reduce");
  at_most(l.mass.part, KVASIR_PART_WINDOW, "mass.part");
  at_most(l.positions.mode, KVASIR_POS_CONSTANT, "positions.mode");
  in_set(l.flags, KVASIR_LIMITS_BEST_SCORES, "flags");
  if ((l.mass.reserved | l.plans.reserved | l.speculation.reserved) != 0)
    defect("limits", "reserved is not zero");
}

// What limits() asks for must have a function that receives it.
void Selector::check_limits_against_slots(const kvasir_sel_limits& l) const {
  const auto demand = [&](bool is_met, const char* what) {
    if (!is_met) defect("limits", what);
  };
  demand(l.plans.at == 0 || has_evict_plan(), "plans.at is set, but there is no evict_plan()");
  demand(l.plans.at == 0 || l.plans.action != 0,
         "plans.at is set, but plans.action is neither RESTRICT nor EVICT");
  demand(l.mass.at == 0 || has_observe(), "mass.at is set, but there is no observe()");
  demand(l.mass.at == 0 || l.mass.level != KVASIR_MASS_NONE, "mass.at is set, mass.level is NONE");
  demand(l.mass.at == 0 || l.mass.level == KVASIR_MASS_LISTS || (desc().needs & KVASIR_NEED_MASS),
         "it asks for attention mass without KVASIR_NEED_MASS");
  demand(l.speculation.layers_ahead == 0 || has_speculate(),
         "speculation.layers_ahead without speculate()");
  demand(l.prefill.last_queries == 0 || has_prefill(), "prefill.last_queries without prefill()");
  demand(l.prefill.slice_tokens == 0 || has_select(), "prefill.slice_tokens without select()");
  demand(l.prefill.query_block == 0 || l.prefill.slice_tokens != 0,
         "prefill.query_block without prefill.slice_tokens");
  demand(l.prefill.dense_last_queries == 0 || l.prefill.slice_tokens != 0,
         "prefill.dense_last_queries without prefill.slice_tokens");
  demand(l.prefill.query_block == 0 || !(desc().needs & KVASIR_NEED_SCORES),
         "prefill.query_block beside KVASIR_NEED_SCORES: scores are per sequence");
  demand(!(desc().needs & KVASIR_NEED_CONTRIBUTION) || has_select(),
         "KVASIR_NEED_CONTRIBUTION without select()");
  demand(!(layout_.flags & KVASIR_LAYOUT_OBSERVE_WRITES) || has_observe(),
         "its layout says OBSERVE_WRITES, but there is no observe()");
  demand(l.expected_units == 0 || l.max_units == KVASIR_NO_LIMIT,
         "expected_units beside max_units: one of them says how many units to expect");
  demand(l.positions.mode != KVASIR_POS_CONSTANT || (desc().needs & KVASIR_NEED_UNROTATED_K),
         "POS_CONSTANT without KVASIR_NEED_UNROTATED_K");
}

kvasir_status Selector::update(const kvasir_step& step,
                               const std::vector<kvasir_update_item>& items) {
  require(has_update(), "update");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step, true);
  const kvasir_update_item* const given_items = arguments.items(items);
  const kvasir_status status = step_call("update", &step, [&](kvasir_err* err) {
    return table().update(base().self, given, given_items, static_cast<uint32_t>(items.size()),
                          sizeof(kvasir_update_item), err);
  });
  finish("update", arguments);
  return status;
}

kvasir_status Selector::prefill(const kvasir_step& step, const kvasir_sel_in& in) {
  require(has_prefill(), "prefill");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_sel_in* const given_in = arguments.select_in(in, step);
  const kvasir_status status = step_call("prefill", &step, [&](kvasir_err* err) {
    return table().prefill(base().self, given, given_in, err);
  });
  finish("prefill", arguments);
  return status;
}

kvasir_status Selector::speculate(const kvasir_step& step, uint32_t target, const kvasir_sel_in& in,
                                  kvasir_selection& out) {
  require(has_speculate(), "speculate");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_sel_in* const given_in = arguments.select_in(in, step);
  kvasir_selection* const given_out = arguments.selection(out, step);
  const kvasir_status status =
      step_call("speculate", &step,
                [&](kvasir_err* err) {
                  return table().speculate(base().self, given, target, given_in, given_out, err);
                },
                {KVASIR_FALLBACK, KVASIR_ERR_CAPACITY});
  finish("speculate", arguments);
  return status;
}

kvasir_status Selector::select(const kvasir_step& step, const kvasir_sel_in& in,
                               kvasir_selection& out) {
  require(has_select(), "select");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  const kvasir_sel_in* const given_in = arguments.select_in(in, step);
  kvasir_selection* const given_out = arguments.selection(out, step);
  const kvasir_status status = step_call(
      "select", &step,
      [&](kvasir_err* err) { return table().select(base().self, given, given_in, given_out, err); },
      {KVASIR_FALLBACK, KVASIR_ERR_CAPACITY});
  finish("select", arguments);
  return status;
}

kvasir_status Selector::observe(const kvasir_step& step, const kvasir_mass& mass) {
  require(has_observe(), "observe");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given =
      arguments.step(step, layout_.flags & KVASIR_LAYOUT_OBSERVE_WRITES);
  const kvasir_mass* const given_mass = arguments.mass(mass, step);
  const kvasir_status status = step_call("observe", &step, [&](kvasir_err* err) {
    return table().observe(base().self, given, given_mass, err);
  });
  finish("observe", arguments);
  return status;
}

kvasir_status Selector::evict_plan(const kvasir_step& step, kvasir_selection& out) {
  require(has_evict_plan(), "evict_plan");
  CallArguments arguments(checked_.get());
  const kvasir_step* const given = arguments.step(step);
  kvasir_selection* const given_out = arguments.selection(out, step);
  const kvasir_status status = step_call(
      "evict_plan", &step,
      [&](kvasir_err* err) { return table().evict_plan(base().self, given, given_out, err); },
      {KVASIR_FALLBACK});
  finish("evict_plan", arguments);
  return status;
}

}  // namespace kvasir
