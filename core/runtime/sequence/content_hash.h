// What a sequence's full blocks are called by their content, so that equal prefixes meet in
// storage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

using Hash128 = std::array<uint64_t, 2>;

// A block's name is a hash of the name before it, its tokens, and how many tokens were computed
// together with each of them: where products of more rows round to the other side, only prefixes
// that came in like steps are equal bit for bit. The first name is hashed from `run`.
// Names hold as long as every token was attended densely, at its position, to all before it.
class ContentHash {
 public:
  ContentHash() = default;
  // run: whatever else K and V depend on (model, element types, rotation).
  ContentHash(const Hash128& run, uint32_t block_size) : run_(run), block_size_(block_size) {}

  // The next tokens. n_together: how many were computed in one step with them, 0 where the results
  // do not depend on it.
  void append(std::span<const int32_t> tokens, uint32_t n_together);
  // What comes from here on, the open block included, has no name.
  void taint() { tainted_ = true; }
  // Keeps the first kv_len tokens; within a block the next one has no name.
  void truncate(uint32_t kv_len);
  // Tokens that were appended before the taint.
  uint64_t n_tokens() const { return names_.size() * block_size_ + open_.size() / 2; }
  // Of block i, null when it has none.
  const Hash128* block(uint32_t i) const { return i < names_.size() ? &names_[i] : nullptr; }

 private:
  Hash128 run_{};
  uint32_t block_size_ = 0;  // 0: nothing is ever named
  bool tainted_ = false;
  std::vector<Hash128> names_;
  std::vector<int32_t>
      open_;  // token, tokens of its step, and so on: of the block that is not full
};

// Of a run, for ContentHash.
Hash128 hash_of(std::span<const uint64_t> words);

}  // namespace kvasir
