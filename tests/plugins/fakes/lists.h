// What kvasir.test.lists keeps: a hash of the place, so that an oracle can ask for it, too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::test {

// Whether the list of `kv_head` for the query block that begins at position `first` names `unit`;
// two of three are named.
inline bool list_names(uint32_t layer, uint32_t kv_head, uint32_t first, uint32_t unit) {
  uint64_t x = (uint64_t{layer} << 50) ^ (uint64_t{kv_head} << 40) ^ (uint64_t{first} << 20) ^ unit;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x % 3 != 0;
}

}  // namespace kvasir::test
