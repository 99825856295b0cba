// Tables of the blocks of sequences, which stay on the device from call to call: of a long context
// a call changes one block per layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_lists.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/device_lists.h"
#include "plugins/shared/attention_geometry.h"
#include "plugins/shared/device_buffer.h"

namespace kvasir::attention {

// The table of a part's leases, in their order.
struct PartTable {
  uint64_t blocks = 0;               // KvBlock [n_blocks], and more behind
  uint32_t n_blocks = 0, empty = 0;  // `empty`: the number of a block without tokens
};

class BlockTables {
 public:
  explicit BlockTables(const Geometry& geometry) : geometry_(geometry) {}

  // For the parts of a call: begin(), update() for each, send(), and commit() once the launch that
  // reads what was sent is in the stream.
  void begin();
  // Makes the table of the owner's layer ready for what is sent, once in a call. `stream` is what
  // works on tables. Throws sdk::Error for leases that cannot be attended where they lie,
  // cuda::Error.
  PartTable update(const kvasir_attn_owner& owner, uint32_t layer, const kvasir_attn_part& part,
                   cuda::Stream stream);
  // Adds the blocks that changed to what travels; returns the offset of the patches.
  uint64_t pack(sdk::Packer& packer);
  uint32_t n_patches() const { return static_cast<uint32_t>(patches_.size()); }
  void commit();

  void forget(uint64_t seq);
  // Bytes of a table of n blocks.
  static uint64_t bytes(uint64_t n_blocks) {
    return (capacity(n_blocks) + 1) * sizeof(cuda::KvBlock);
  }

 private:
  struct Table {
    sdk::DeviceBuffer memory;
    uint32_t capacity = 0, n_blocks = 0;  // blocks [0, n_blocks) are there
  };
  static uint64_t capacity(uint64_t n_blocks) { return n_blocks + n_blocks / 4 + 16; }
  void list_block(const kvasir_lease& lease);

  const Geometry& geometry_;
  std::map<std::pair<uint64_t, uint32_t>, Table> tables_;  // of (sequence, layer)
  struct Ready {  // and what it is once the call's patches are there
    Table* table;
    uint32_t capacity, n_blocks;
  };
  std::vector<Ready> ready_;
  std::vector<cuda::KvBlock> blocks_;      // that travel
  std::vector<cuda::TablePatch> patches_;  // from: a place among them
};

}  // namespace kvasir::attention
