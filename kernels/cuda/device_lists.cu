// See device_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_lists.h"

#include "kernels/cuda/kv_chunk.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kListThreads = 256;
constexpr uint64_t kBlockWords = sizeof(KvBlock) / sizeof(uint64_t);
static_assert(sizeof(KvBlock) % sizeof(uint64_t) == 0);

KVASIR_DEVICE void place_list(const ChosenList& list) {
  const Global<const uint32_t> index = global<const uint32_t>(list.index);
  const Global<uint32_t> items = global<uint32_t>(list.items);
  for (uint64_t i = thread_x(); i < list.n; i += kListThreads) {
    const uint32_t chosen = index[i];
    items[i] = chosen < list.n_blocks ? chosen : list.empty;
  }
}

KVASIR_DEVICE void place_patch(const TablePatch& patch) {
  const Global<const uint64_t> from = global<const uint64_t>(patch.from);
  const Global<uint64_t> to = global<uint64_t>(patch.to);
  for (uint64_t i = thread_x(); i < patch.n * kBlockWords; i += kListThreads) {
    const uint64_t word = from[i];
    to[i] = word;
  }
}

KVASIR_KERNEL void KVASIR_BOUNDS(kListThreads)
    place_in_block(uint64_t lists, uint32_t n_lists, uint64_t patches) {
  if (block_x() < n_lists)
    place_list(load_at<ChosenList>(lists + sizeof(ChosenList) * block_x()));
  else
    place_patch(load_at<TablePatch>(patches + sizeof(TablePatch) * (block_x() - n_lists)));
}

}  // namespace

void place_lists(uint64_t lists, uint32_t n_lists, uint64_t patches, uint32_t n_patches,
                 Stream stream) {
  launch(place_in_block, {.blocks_x = n_lists + n_patches, .threads = kListThreads}, stream, lists,
         n_lists, patches);
}

}  // namespace kvasir::cuda
