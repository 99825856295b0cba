// See block_tables.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cuda/block_tables.h"

#include <algorithm>
#include <cstddef>

namespace kvasir::attention {

void BlockTables::begin() {
  ready_.clear();
  blocks_.clear();
  patches_.clear();
}

PartTable BlockTables::update(const kvasir_attn_owner& owner, uint32_t layer,
                              const kvasir_attn_part& part, cuda::Stream stream) {
  const uint32_t n = part.n_leases;
  if (n > UINT32_MAX / 2) sdk::fail_invalid("a part of more leases than a table has");
  Table& table = tables_[{owner.seq, layer}];
  if (std::any_of(ready_.begin(), ready_.end(), [&](const Ready& r) { return r.table == &table; }))
    sdk::fail_invalid("two parts with lists are of one sequence");
  Ready ready{&table, table.capacity, n};
  table.n_blocks = std::min({table.n_blocks, owner.unchanged, n});
  const bool grows = n > table.capacity;
  if (grows) {
    cuda::wait(stream);  // nothing may still read what goes
    table.n_blocks = table.capacity = 0;
    table.memory.ensure(bytes(n), bytes(n));
    ready.capacity = static_cast<uint32_t>(capacity(n));
  }
  const auto patch = [&](uint64_t at, uint64_t n_blocks) {
    patches_.push_back({blocks_.size() * sizeof(cuda::KvBlock),
                        sdk::address(table.memory.data()) + at * sizeof(cuda::KvBlock), n_blocks});
  };
  if (grows) {
    patch(ready.capacity, 1);
    blocks_.emplace_back();
  }
  patch(table.n_blocks, n - table.n_blocks);
  for (uint32_t i = table.n_blocks; i < n; ++i) list_block(geometry_.lease(part, i));
  ready_.push_back(ready);
  return {sdk::address(table.memory.data()), n, ready.capacity};
}

void BlockTables::list_block(const kvasir_lease& lease) {
  const kvasir_kv_format& format = geometry_.format(lease);
  if (format.mem_kind != KVASIR_MEM_DEVICE || lease.kv_head != KVASIR_ALL_HEADS || lease.token_pos)
    sdk::fail_invalid("a table has blocks of all kv heads on the device, at their positions");
  blocks_.push_back({sdk::address(lease.k), sdk::address(lease.v), 0, lease.pos_begin,
                     lease.n_tokens, lease.format, 0});
}

uint64_t BlockTables::pack(sdk::Packer& packer) {
  const uint64_t blocks = packer.put(blocks_);
  for (cuda::TablePatch& patch : patches_) patch.from += blocks;
  const uint64_t patches = packer.put(patches_);
  for (size_t i = 0; i < patches_.size(); ++i)
    packer.is_address(patches + i * sizeof(cuda::TablePatch) + offsetof(cuda::TablePatch, from));
  return patches;
}

void BlockTables::commit() {
  for (const Ready& ready : ready_) {
    ready.table->capacity = ready.capacity;
    ready.table->n_blocks = ready.n_blocks;
  }
  ready_.clear();
}

void BlockTables::forget(uint64_t seq) {
  tables_.erase(tables_.lower_bound({seq, 0}), tables_.upper_bound({seq, UINT32_MAX}));
}

}  // namespace kvasir::attention
