// Names of blocks; see content_hash.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>

namespace kvasir {
namespace {

Hash128 words_of(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

// XXH3 takes a seed of 64 bits, so the second half of the parent is hashed before the tokens.
Hash128 child_of(const Hash128& parent, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> bytes(2 + tokens.size());
  bytes[0] = static_cast<int32_t>(parent[1]);
  bytes[1] = static_cast<int32_t>(parent[1] >> 32);
  std::copy(tokens.begin(), tokens.end(), bytes.begin() + 2);
  return words_of(XXH3_128bits_withSeed(bytes.data(), bytes.size() * sizeof(bytes[0]), parent[0]));
}

}  // namespace

Hash128 hash_of(std::span<const uint64_t> words) {
  return words_of(XXH3_128bits(words.data(), words.size_bytes()));
}

void ContentHash::append(std::span<const int32_t> tokens, uint32_t n_together) {
  if (tainted_ || block_size_ == 0) return;
  for (const int32_t token : tokens) {
    open_.push_back(token);
    open_.push_back(static_cast<int32_t>(n_together));
    if (open_.size() < size_t{2} * block_size_) continue;
    names_.push_back(child_of(names_.empty() ? run_ : names_.back(), open_));
    open_.clear();
  }
}

void ContentHash::truncate(uint32_t kv_len) {
  if (block_size_ == 0) return;
  if (kv_len >= n_tokens()) return;  // what is cut off was never added
  names_.resize(kv_len / block_size_);
  open_.clear();
  tainted_ = kv_len % block_size_ != 0;
}

}  // namespace kvasir
