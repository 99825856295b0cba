// One block of K and V, and the list of blocks that a layer or a kv head of a sequence holds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/runtime/blocks/needed_tokens.h"

namespace kvasir {

class BlockStore;

// K and V of up to block_size tokens of one layer: of all kv heads, or of one where the tokens are
// packed. Forks share it; when the last of them lets it go, its store drops it from storage.
struct Block {
  kvasir_block_key key{};
  kvasir_lease lease{};  // of acquire(WRITE), then of seal(); lease.lease is 0 once it is released
  bool sealed = false;
  BlockStore* store = nullptr;  // must outlive this; null: nothing to drop
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();
};

// In lease.format the core counts through all formats of a strategy; see BlockAccess::formats.
struct BlockList {
  std::vector<std::shared_ptr<Block>> blocks;  // null: given up as a whole
  std::vector<kvasir_lease> leases;            // parallel: what backends and plugins see
  std::vector<NeededBlock> partial;            // what PARTIAL leases of this step cover
  std::vector<uint64_t> superseded;  // leases of this step whose block was leased again for more
  // Since somebody last looked, blocks were not in memory when a step asked for them, or were
  // brought there ahead of it.
  bool lacked = false;
  // Leases [0, told) are those that a backend which keeps tables of blocks was told latest.
  uint32_t told = 0;

  // Whether block i exists and is one of `store`.
  bool is_in(const BlockStore& store, size_t i) const {
    return blocks[i] && blocks[i]->store == &store;
  }
};

// Which tokens a step needs of the blocks of one list.
struct ListNeeds {
  BlockList* list = nullptr;
  std::vector<NeededBlock> blocks;
};

}  // namespace kvasir
