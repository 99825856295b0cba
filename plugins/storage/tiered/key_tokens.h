// What a key names and what it needs, as tokens of the block that was found for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/storage.h>

#include "plugins/storage/tiered/records.h"
#include "plugins/storage/tiered/token_set.h"

namespace kvasir::tiered {

// records: of the block; is_slice: the key names one head of a block of all.
inline TokenSet covered_by(const kvasir_block_key& key, bool is_slice, const Records& records) {
  const uint32_t first = is_slice ? key.kv_head * records.block_size() : 0;
  const uint32_t n = is_slice ? records.block_size() : records.size();
  return TokenSet::range(records.size(), first, first + n);
}
inline TokenSet needed_by(const kvasir_block_key& key, bool is_slice, const Records& records) {
  if (!key.needed) return covered_by(key, is_slice, records);
  const uint32_t first = is_slice ? key.kv_head * records.block_size() : 0;
  const uint32_t n = is_slice ? records.block_size() : records.size();
  return TokenSet::from_words(records.size(), first, n, key.needed);
}
inline uint32_t n_needed(const kvasir_block_key& key, bool is_slice, const Records& records) {
  const uint32_t n = is_slice ? records.block_size() : records.size();
  return key.needed ? TokenSet::from_words(n, 0, n, key.needed).count() : n;
}

}  // namespace kvasir::tiered
