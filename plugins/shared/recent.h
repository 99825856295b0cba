// What selectors share that keep the most recent tokens: budget_tokens counts the last candidates
// before the window, the others may be evicted, and prompts may be read as sparsely as answers.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/options.h>
#include <kvasir/sdk/step.h>
#include <kvasir/selector.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvasir::sdk {

constexpr kvasir_option_schema evict_option(const char* help) {
  return bool_option({.key = "evict", .help = help}, false);
}
inline constexpr kvasir_option_schema kPrefillSelectOption =
    int_option({.key = "prefill_select_tokens",
                .help = "select in prefill too, for this many queries at once; 0 = dense",
                .unit = "tokens"},
               0, 0, INT32_MAX);

// What the two options ask of the host. Where no later slice of a prompt can see what a chunk gives
// up, it goes at once; where prompts are read densely, at their end.
struct RecentOnly {
  explicit RecentOnly(const Options& options)
      : evict(options.boolean("evict")), slice_tokens(options.u32("prefill_select_tokens")) {}
  void limits(kvasir_sel_limits& out) const {
    out.plans.action = KVASIR_ACTION_EVICT;
    if (evict) out.plans.at = KVASIR_PLAN_AT_PROMPT_END | KVASIR_PLAN_AT_STEP_END;
    if (slice_tokens == 0) return;
    out.prefill.slice_tokens = slice_tokens;
    if (evict) out.plans.at |= KVASIR_PLAN_AT_CHUNK_END;
  }

  bool evict;
  uint32_t slice_tokens;  // 0: prompts are read densely
};

inline uint64_t n_recent(const Candidates& from, uint32_t budget_tokens) {
  return std::min<uint64_t>(from.size(), budget_tokens);
}
inline void take_recent(const Candidates& from, std::span<uint32_t> list) {
  const uint64_t first = from.size() - list.size();
  for (size_t i = 0; i < list.size(); ++i) list[i] = from[first + i];
}

}  // namespace kvasir::sdk
