// Which tokens of which kv heads a step needs of each block, so that storage moves no others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/runtime/blocks/needed_block.h"
#include "core/runtime/sequence/sequence.h"

namespace kvasir {

// Collects them for the blocks of one list.
class NeededTokens {
 public:
  // n_kv_heads: 1 where the blocks hold one head.
  NeededTokens(uint32_t block_size, uint32_t n_kv_heads, size_t n_blocks)
      : block_size_(block_size), n_kv_heads_(n_kv_heads), blocks_(n_blocks) {}
  void add_token(uint32_t kv_head, uint32_t token) {
    add(kv_head, token / block_size_, token % block_size_, token % block_size_ + 1);
  }
  void add_block(uint32_t kv_head, uint32_t block) { add(kv_head, block, 0, block_size_); }
  // By block, ascending. Blocks all of whose tokens are needed are whole.
  std::vector<NeededBlock> take();

 private:
  void add(uint32_t kv_head, uint32_t block, uint32_t begin, uint32_t end);

  uint32_t block_size_, n_kv_heads_;
  std::vector<std::vector<uint64_t>> blocks_;  // empty: nothing is needed
};

// What `selection` chose of a list of n_blocks blocks; what is forced is not part of it.
std::vector<NeededBlock> needed_by(const LayerSelection& selection, uint32_t block_size,
                                   uint32_t n_kv_heads, size_t n_blocks);

}  // namespace kvasir
