// Tokens that a step needs; see needed_tokens.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/needed_tokens.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/runtime/sequence/sequence.h"

namespace kvasir {

bool NeededBlock::covers(const NeededBlock& other) const {
  if (tokens.empty()) return true;
  if (other.tokens.empty()) return false;
  for (size_t word = 0; word < tokens.size(); ++word)
    if (other.tokens[word] & ~tokens[word]) return false;
  return true;
}

void NeededBlock::add(const NeededBlock& other) {
  if (tokens.empty() || other.tokens.empty()) return tokens.clear();
  for (size_t word = 0; word < tokens.size(); ++word) tokens[word] |= other.tokens[word];
}

void NeededTokens::add(uint32_t kv_head, uint32_t block, uint32_t begin, uint32_t end) {
  std::vector<uint64_t>& words = blocks_[block];
  if (words.empty()) words.resize((uint64_t{n_kv_heads_} * block_size_ + 63) / 64);
  for (uint64_t bit = uint64_t{kv_head} * block_size_ + begin;
       bit < uint64_t{kv_head} * block_size_ + end; ++bit)
    words[bit / 64] |= uint64_t{1} << (bit % 64);
}

std::vector<NeededBlock> NeededTokens::take() {
  const uint64_t all = uint64_t{n_kv_heads_} * block_size_;
  std::vector<NeededBlock> out;
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    std::vector<uint64_t>& words = blocks_[block];
    if (words.empty()) continue;
    uint64_t n = 0;
    for (const uint64_t word : words) n += static_cast<uint64_t>(std::popcount(word));
    if (n == all) words.clear();
    out.push_back({block, std::exchange(words, {})});
  }
  return out;
}

std::vector<NeededBlock> needed_by(const LayerSelection& selection, uint32_t block_size,
                                   uint32_t n_kv_heads, size_t n_blocks) {
  NeededTokens needed(block_size, n_kv_heads, n_blocks);
  for (uint32_t head = 0; head < n_kv_heads && !selection.dense; ++head)
    for (const uint32_t unit : selection.head(head).index) {
      if (selection.unit == KVASIR_UNIT_BLOCK)
        needed.add_block(head, unit);
      else
        needed.add_token(head, unit);
    }
  return needed.take();
}

}  // namespace kvasir
