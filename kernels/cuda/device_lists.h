// What a call of attention is told on the device: lists that were chosen there, and tables of
// blocks that stay there from call to call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// items[i] = index[i] where that is below n_blocks, else `empty`, the number of a block without
// tokens: whatever the indices are, nothing outside of the table is read for them.
struct ChosenList {
  uint64_t index;  // u32 [n]
  uint64_t items;  // u32 [n], written
  uint32_t n, n_blocks, empty, reserved;
};

// KvBlock [n] that go into a table.
struct TablePatch {
  uint64_t from, to;
  uint64_t n;
};

// Launch: a block of 256 threads per list and per patch; they are of unlike memory.
//   lists    ChosenList [n_lists]
//   patches  TablePatch [n_patches]
// Queued in the stream.
void place_lists(uint64_t lists, uint32_t n_lists, uint64_t patches, uint32_t n_patches,
                 Stream stream);

}  // namespace kvasir::cuda
