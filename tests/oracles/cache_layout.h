// Which tokens are attended without being chosen: attention sinks, window, the current token.
// The core's rule, from the comments of core/runtime/select/index_lists.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle {

struct CacheLayout {
  uint32_t block_size = 16;
  uint32_t sink_tokens = 4, window_tokens = 64;
  bool window_from_prompt = false;   // starts window_tokens before the prompt's end and grows
  uint32_t window_flush_tokens = 0;  // then hands over so many at once
};

// Tokens [0, sink_end) and [window_begin, n) are forced.
struct Forced {
  uint32_t sink_end = 0, window_begin = 0;
};

// n: cached tokens as the query sees them, its own included.
inline Forced forced_tokens(const CacheLayout& of, uint32_t n, uint32_t prompt_end) {
  uint32_t begin = n > of.window_tokens ? n - of.window_tokens : 0;
  if (of.window_from_prompt) {
    const uint32_t end = std::min(n, prompt_end);
    begin = end > of.window_tokens ? end - of.window_tokens : 0;
    if (of.window_flush_tokens > 0)
      while (n > prompt_end && n - prompt_end >= of.window_flush_tokens) {
        begin += of.window_flush_tokens;
        prompt_end += of.window_flush_tokens;
      }
  }
  if (n > 0 && begin > n - 1) begin = n - 1;  // the current token
  return {std::min(of.sink_tokens, begin), begin};
}

// The same in whole blocks, rounded outward; the result is in tokens.
inline Forced forced_blocks(const CacheLayout& of, uint32_t n, uint32_t prompt_end) {
  const Forced tokens = forced_tokens(of, n, prompt_end);
  const uint32_t begin = tokens.window_begin - tokens.window_begin % of.block_size;
  uint32_t sink = 0;
  while (sink < of.sink_tokens && sink < begin) sink += of.block_size;
  return {sink, begin};
}

// Blocks that may be chosen: ceil(sink / B) <= b < floor((n - window) / B).
inline Indices candidate_blocks(const CacheLayout& of, uint32_t n, uint32_t prompt_end) {
  const Forced forced = forced_blocks(of, n, prompt_end);
  return range(forced.sink_end / of.block_size, forced.window_begin / of.block_size);
}
inline Indices candidate_tokens(const CacheLayout& of, uint32_t n, uint32_t prompt_end) {
  const Forced forced = forced_tokens(of, n, prompt_end);
  return range(forced.sink_end, forced.window_begin);
}

// The tokens of these blocks that exist.
inline Indices tokens_of(const Indices& blocks, uint32_t block_size, uint32_t n) {
  Indices out;
  for (const uint32_t b : blocks)
    for (uint32_t t = b * block_size; t < (b + 1) * block_size && t < n; ++t) out.push_back(t);
  return out;
}

// Forced tokens and chosen ones together.
inline Indices with_forced(const Forced& forced, const Indices& chosen, uint32_t n) {
  return unite(unite(range(0, forced.sink_end), range(forced.window_begin, n)), chosen);
}

}  // namespace kvasir::oracle
