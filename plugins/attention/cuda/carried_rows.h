// K and V in host memory that travel to the device for some slots of some ranges: a wave.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"
#include "plugins/shared/attention_geometry.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/packer.h"

namespace kvasir::attention {

// Distance of rows that are packed: each is aligned for loads of 16 bytes.
uint64_t packed_stride(cuda::KvType type, uint32_t width);

// Memory of one wave on both sides, reused from wave to wave.
struct CarriedWave {
  sdk::Packer lists;   // parts and what they name, and what the caller adds
  uint64_t parts = 0;  // offset: AttentionPart, one for each range of the wave
  sdk::DeviceBuffer sent_lists, rows;

  struct Copy {
    const std::byte* from;  // null: of `staged`, from there on
    uint64_t staged, to, bytes;
  };
  std::vector<Copy> copies;  // to offsets of `rows`
  std::vector<std::byte> staged;
  uint64_t n_bytes = 0, most_bytes = UINT64_MAX;  // of `rows`
};

class CarriedRows {
 public:
  // formats: those of bind(), then the same for rows that were packed.
  CarriedRows(const Geometry& geometry, const std::vector<cuda::KvFormat>& formats)
      : geometry_(geometry), formats_(formats) {}

  // Most bytes of rows in kSplitSlots slots of a range.
  uint64_t split_bytes() const;
  // Splits of a range that a wave may take at most: its lists count in 32 bits.
  uint64_t most_splits() const { return (uint64_t{1} << 24) / geometry_.block_size; }

  // Makes `wave` of the slots that the ranges name, whose parts are those of `in`, as `placed` has
  // them on the device; afterwards ranges[i].part is i. Blocks whose rows lie one after the other
  // are copied from where they are, other rows are packed. The copies of rows, for which
  // wave.most_bytes suffice, are in the stream when this returns; sending `wave.lists` is left to
  // the caller.
  void start(const kvasir_attn_in& in, std::span<const cuda::AttentionPart> placed,
             std::span<cuda::AttentionRange> ranges, bool with_values, cuda::Stream stream,
             CarriedWave& wave) const;

 private:
  struct Walk;
  void add_blocks(std::span<Walk> walks, bool with_values, CarriedWave& wave) const;
  void add_tokens(Walk& walk, bool with_values, CarriedWave& wave) const;
  void add_block(Walk& walk, const kvasir_lease& lease, uint32_t begin, uint32_t end,
                 CarriedWave& wave) const;
  void carry(Walk& walk, const kvasir_lease& lease, bool is_k, uint32_t begin, uint32_t end,
             CarriedWave& wave) const;
  void put_lists(std::span<Walk> walks, bool with_values, CarriedWave& wave) const;
  bool is_contiguous(uint32_t format) const;

  const Geometry& geometry_;
  const std::vector<cuda::KvFormat>& formats_;
};

}  // namespace kvasir::attention
