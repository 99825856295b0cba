// The last candidates before the window: what budget_tokens buys where recency is the whole idea.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "plugins/sdk/step.h"

namespace kvasir::sdk {

inline uint64_t n_recent(const Candidates& from, uint32_t budget_tokens) {
  return std::min<uint64_t>(from.size(), budget_tokens);
}
inline void take_recent(const Candidates& from, std::span<uint32_t> row) {
  const uint64_t first = from.size() - row.size();
  for (size_t i = 0; i < row.size(); ++i) row[i] = from[first + i];
}

}  // namespace kvasir::sdk
