// Names of a sequence's full blocks, made from their content, so that a storage finds the blocks of
// an equal prefix.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

using Hash128 = std::array<uint64_t, 2>;

// A block's name is a hash of the name of the block before it, its tokens, and for each token how
// many were computed in one step with it. Matrix products of different sizes may round differently,
// so K and V of equal prefixes are equal bit for bit only when their steps were equal, too. The
// first name is hashed from `run`. A name says what K and V are only while each token has attended
// all tokens before it at its own position: the caller calls taint() when that ends.
class ContentHash {
 public:
  ContentHash() = default;
  // run: a hash of whatever else K and V depend on (model, element types, rotation).
  ContentHash(const Hash128& run, uint32_t block_size) : run_(run), block_size_(block_size) {}

  // Adds the next tokens. n_together: how many were computed in one step with them, 0 where results
  // do not depend on it.
  void append(std::span<const int32_t> tokens, uint32_t n_together);
  // From here on no block gets a name, the open one included.
  void taint() { tainted_ = true; }
  // Keeps the first kv_len tokens. When that cuts a block, no block gets a name from there on.
  void truncate(uint32_t kv_len);
  // How many tokens were appended, without those that came after taint() or were cut.
  uint64_t n_tokens() const { return names_.size() * block_size_ + open_.size() / 2; }
  // The name of block i; null when it has none.
  const Hash128* block(uint32_t i) const { return i < names_.size() ? &names_[i] : nullptr; }

 private:
  Hash128 run_{};
  uint32_t block_size_ = 0;  // 0: nothing is ever named
  bool tainted_ = false;
  std::vector<Hash128> names_;
  // Of the block that is not full: a token, n_together of its step, the next token, and so on.
  std::vector<int32_t> open_;
};

// For the `run` of ContentHash.
Hash128 hash_of(std::span<const uint64_t> words);

}  // namespace kvasir
