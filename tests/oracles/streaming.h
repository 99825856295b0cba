// StreamingLLM: the first tokens and the last ones (Xiao et al. 2023, arXiv:2309.17453).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle::streaming {

// n: cached tokens, the current one included.
inline Indices kept(uint32_t sink_tokens, uint32_t recent_tokens, uint32_t n) {
  if (n <= sink_tokens + recent_tokens) return range(0, n);
  return unite(range(0, sink_tokens), range(n - recent_tokens, n));
}

// Where the published code puts the i-th kept token, and the query of the newest one: by slot.
inline uint32_t slot_of_query(const Indices& tokens) {
  return static_cast<uint32_t>(tokens.size()) - 1;
}

}  // namespace kvasir::oracle::streaming
