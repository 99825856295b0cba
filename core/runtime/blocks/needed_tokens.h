// Which tokens of which kv heads a step needs of each block, so that storage moves no others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

struct LayerSelection;

struct NeededBlock {
  uint32_t block = 0;
  std::vector<uint64_t> tokens;  // bits, as kvasir_block_key.needed; empty: the whole block
  // Whether `other`, which is of the same list, needs no token that this does not.
  bool covers(const NeededBlock& other) const;
  // Needs the tokens of `other` as well.
  void add(const NeededBlock& other);
};

// Collects what is needed of the blocks of one list.
class NeededTokens {
 public:
  // block_size in tokens. n_kv_heads: 1 where the blocks hold one head.
  NeededTokens(uint32_t block_size, uint32_t n_kv_heads, size_t n_blocks)
      : block_size_(block_size), n_kv_heads_(n_kv_heads), blocks_(n_blocks) {}
  void add_token(uint32_t kv_head, uint32_t token) {
    add(kv_head, token / block_size_, token % block_size_, token % block_size_ + 1);
  }
  void add_block(uint32_t kv_head, uint32_t block) { add(kv_head, block, 0, block_size_); }
  // Blocks of which something is needed, ascending; this is empty afterwards.
  std::vector<NeededBlock> take();

 private:
  // Tokens [begin, end) of the block.
  void add(uint32_t kv_head, uint32_t block, uint32_t begin, uint32_t end);

  uint32_t block_size_, n_kv_heads_;
  std::vector<std::vector<uint64_t>> blocks_;  // bits as NeededBlock::tokens; empty: no token
};

// The units that `selection` lists, of a list of n_blocks blocks. Sinks, window and what is
// attended densely are not among them.
std::vector<NeededBlock> needed_by(const LayerSelection& selection, uint32_t block_size,
                                   uint32_t n_kv_heads, size_t n_blocks);

}  // namespace kvasir
