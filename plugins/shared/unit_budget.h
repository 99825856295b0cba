// Options `budget_tokens` and `unit` of selectors that choose whole blocks or single tokens. For
// plugins that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include "plugins/shared/block_choice.h"

namespace kvasir::sdk {

inline constexpr const char* kUnitNames[] = {"block", "token"};
inline constexpr kvasir_option_schema kUnitOption =
    enum_option({.key = "unit", .help = "whole blocks or single tokens"}, kUnitNames, 0);
constexpr kvasir_option_schema unit_budget_option(const char* group = nullptr) {
  return int_option({.key = "budget_tokens",
                     .help = "selected per layer, kv head and step, rounded down to the unit",
                     .unit = "tokens",
                     .group = group},
                    4096, 1, INT32_MAX);
}

// Without a number where an alternative to budget_tokens decides.
class UnitBudget {
 public:
  explicit UnitBudget(const Options& options)
      : tokens_(options.u32_or("budget_tokens", 0)),
        unit_(options.choice("unit") == 0 ? KVASIR_UNIT_BLOCK : KVASIR_UNIT_TOKEN) {}

  // Throws where the budget is less than one unit.
  void validate(const kvasir_geometry& geometry) const { units(geometry); }

  void bind(const kvasir_geometry& geometry) {
    units_ = units(geometry);
    per_unit_ = unit_ == KVASIR_UNIT_BLOCK ? geometry.block_size : 1;
    n_heads_ = geometry.head_select_shared ? 1 : geometry.n_kv_heads;
  }

  void limits(kvasir_sel_limits& out) const {
    out.unit = unit_;
    out.scope = scope();
    if (tokens_ != 0) out.max_units = units_;
  }

  uint32_t units() const { return units_; }        // to select
  uint32_t per_unit() const { return per_unit_; }  // tokens
  uint32_t n_heads() const { return n_heads_; }    // lists per sequence
  uint32_t scope() const { return n_heads_ == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD; }

 private:
  uint32_t units(const kvasir_geometry& geometry) const {
    return unit_ == KVASIR_UNIT_TOKEN || tokens_ == 0
               ? tokens_
               : tokens_to_blocks("budget_tokens", tokens_, geometry);
  }

  uint32_t tokens_, unit_;
  uint32_t units_ = 0, per_unit_ = 1, n_heads_ = 1;
};

}  // namespace kvasir::sdk
