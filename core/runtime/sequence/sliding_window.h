// What a layer with a sliding window still sees.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir {

// The first token that a query at `pos` sees through a window of `window` tokens, its own included;
// 0: all before it.
inline uint32_t first_seen(uint32_t pos, uint32_t window) {
  return window != 0 && pos >= window ? pos + 1 - window : 0;
}

// Blocks that a sequence of n tokens has let go of, in such a layer: those that no later query
// sees, but one, so that the last tokens can be cut off and fed anew.
inline uint32_t blocks_let_go(uint32_t n, uint32_t window, uint32_t block_size) {
  const uint32_t unseen = first_seen(n, window) / block_size;
  return unseen > 1 ? unseen - 1 : 0;
}

}  // namespace kvasir
