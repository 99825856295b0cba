// See state.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/selector/magicpig/state.h"

namespace kvasir::magicpig {

bool Layer::truncate(uint32_t kv_len) {
  if (kv_len >= hashed_end) return true;
  if (kv_len < prompt_end) {
    *this = {};
    return false;
  }
  hashed_end = kv_len;
  std::erase_if(skipped, [&](uint32_t token) { return token >= kv_len; });
  for (Head& head : heads) {
    while (!head.segments.empty() && head.segments.back()->begin() >= kv_len) {
      head.segments.pop_back();
    }
    if (!head.segments.empty() && head.segments.back()->end() > kv_len) {
      head.segments.back() = head.segments.back()->cut(kv_len);
    }
  }
  return true;
}

}  // namespace kvasir::magicpig
