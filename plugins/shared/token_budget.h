// `budget_tokens`, and caps of papers that count sink and window as well.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/host.h>
#include <kvasir/sdk/options.h>
#include <kvasir/selector.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kvasir::sdk {

// Options that say how much is kept.
inline constexpr const char* kBudgetGroup = "budget";

// Alone, or the default among alternatives.
constexpr kvasir_option_schema budget_option(int64_t def, const char* group = nullptr) {
  return int_option({.key = "budget_tokens",
                     .help = "kept per layer and kv head, beyond sink and window",
                     .unit = "tokens",
                     .group = group},
                    def, 0, INT32_MAX);
}
// The paper's own number, sink and window included; an alternative to budget_tokens.
constexpr kvasir_option_schema cap_option(const char* key, const char* const* aliases) {
  return int_option({.key = key,
                     .help = "the same with sink and window counted, instead of budget_tokens",
                     .unit = "tokens",
                     .aliases = aliases,
                     .flags = KVASIR_OPTION_OPTIONAL,
                     .group = kBudgetGroup},
                    0, 1, INT32_MAX);
}

// When tokens are evicted.
inline constexpr const char* kEvictAtNames[] = {"step", "prompt_end"};
inline constexpr kvasir_option_schema kEvictAtOption = enum_option(
    {.key = "evict_at", .help = "after the prompt and every token, or after the prompt only"},
    kEvictAtNames, 0);
inline bool evicts_each_step(const Options& options) { return options.choice("evict_at") == 0; }

// Plans after the prompt and, with each_step, after every token, with the mass they need.
inline void plan_evictions(bool each_step, kvasir_sel_limits& out) {
  out.plans.at = KVASIR_PLAN_AT_PROMPT_END | (each_step ? KVASIR_PLAN_AT_STEP_END : 0u);
  out.mass.at = KVASIR_MASS_AT_PREFILL | (each_step ? KVASIR_MASS_AT_DECODE : 0u);
}

class TokenBudget {
 public:
  TokenBudget(const Options& options, const char* cap_key)
      : tokens_(options.u32_or("budget_tokens", 0)),
        cap_(options.u32_or(cap_key, 0)),
        cap_key_(cap_key) {}

  // Beyond the forced parts, of which the current token always is one.
  uint32_t tokens(const kvasir_geometry& geometry) const {
    if (cap_ == 0) return tokens_;
    const uint64_t forced = uint64_t{geometry.sink_tokens} + std::max(1u, geometry.window_tokens);
    if (cap_ < forced) {
      fail_invalid(std::string(cap_key_) + " = " + std::to_string(cap_) +
                   " is less than sink_tokens = " + std::to_string(geometry.sink_tokens) +
                   " and window_tokens = " + std::to_string(geometry.window_tokens) +
                   " together, which it includes: raise it or lower them");
    }
    return static_cast<uint32_t>(cap_ - forced);
  }

  // Logs what the cap comes to; `unit`: tokens that are kept or lost together.
  void log(const Host& host, const kvasir_geometry& geometry, uint32_t unit = 1) const {
    if (cap_ == 0) return;
    const uint32_t n = tokens(geometry);
    const std::string whole = n % unit == 0 ? ""
                                            : ", in whole blocks of " + std::to_string(unit) + " " +
                                                  std::to_string(n / unit * unit);
    host.log(KVASIR_LOG_INFO, std::string(cap_key_) + " = " + std::to_string(cap_) +
                                  " with sink_tokens = " + std::to_string(geometry.sink_tokens) +
                                  " and window_tokens = " + std::to_string(geometry.window_tokens) +
                                  ": budget_tokens = " + std::to_string(n) + whole);
  }

 private:
  uint32_t tokens_;
  uint32_t cap_;  // 0: budget_tokens decides
  const char* cap_key_;
};

}  // namespace kvasir::sdk
