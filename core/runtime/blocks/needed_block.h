// What a step needs of a block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

struct NeededBlock {
  uint32_t block = 0;
  std::vector<uint64_t> tokens;  // as kvasir_block_key.needed; empty: the whole block
  // Whether `other`, which is of the same list, asks for nothing beyond this.
  bool covers(const NeededBlock& other) const;
  void add(const NeededBlock& other);
};

}  // namespace kvasir
