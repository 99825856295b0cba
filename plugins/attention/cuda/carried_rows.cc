// See carried_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cuda/carried_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/element_type.h"

namespace kvasir::attention {
namespace {

using cuda::KvType;

uint64_t row_bytes(KvType type, uint32_t width) {
  return kernels::row_bytes(static_cast<kernels::ElementType>(type), width);
}

uint64_t aligned(uint64_t n) {
  constexpr uint64_t kAlignment = sdk::Packer::kAlignment;
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

// Joined with the one before where both sides go on there.
void add_copy(const CarriedWave::Copy& copy, std::vector<CarriedWave::Copy>& copies) {
  if (!copies.empty()) {
    CarriedWave::Copy& last = copies.back();
    const bool goes_on = copy.from ? last.from && copy.from == last.from + last.bytes
                                   : !last.from && copy.staged == last.staged + last.bytes;
    if (goes_on && copy.to == last.to + last.bytes) {
      last.bytes += copy.bytes;
      return;
    }
  }
  copies.push_back(copy);
}

}  // namespace

uint64_t packed_stride(KvType type, uint32_t width) { return aligned(row_bytes(type, width)); }

// Along the items of one range.
struct CarriedRows::Walk {
  const kvasir_attn_part& part;
  const cuda::AttentionRange& range;
  cuda::AttentionPart to;
  std::vector<cuda::KvBlock> blocks{};   // of the wave; k and v are offsets of rows
  std::vector<size_t> with_positions{};  // blocks whose `pos` is an offset of lists
  std::vector<uint32_t> items{};         // by token only
};

uint64_t CarriedRows::split_bytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < geometry_.formats.size(); ++i) {
    const cuda::KvFormat& f = formats_[i];
    if (f.k_type == KvType::kMixed || f.v_type == KvType::kMixed) continue;
    bytes = std::max(bytes, packed_stride(f.k_type, geometry_.head_dim) +
                                packed_stride(f.v_type, geometry_.v_dim));
  }
  return bytes * cuda::kSplitSlots;
}

void CarriedRows::start(const kvasir_attn_in& in, std::span<const cuda::AttentionPart> placed,
                        std::span<cuda::AttentionRange> ranges, bool with_values,
                        cuda::Stream stream, CarriedWave& wave) const {
  wave.lists.clear();
  wave.copies.clear();
  wave.staged.clear();
  wave.n_bytes = 0;
  std::vector<Walk> walks;
  for (const cuda::AttentionRange& range : ranges)
    walks.push_back({parts_of(in)[range.part], range, placed[range.part]});
  add_blocks(walks, with_values, wave);
  for (Walk& walk : walks)
    if (walk.to.by_token) add_tokens(walk, with_values, wave);
  put_lists(walks, with_values, wave);
  for (size_t i = 0; i < ranges.size(); ++i) ranges[i].part = static_cast<uint32_t>(i);
  auto* const to = static_cast<std::byte*>(wave.rows.data());
  for (const CarriedWave::Copy& copy : wave.copies)
    cuda::copy_to_device(to + copy.to, copy.from ? copy.from : wave.staged.data() + copy.staged,
                         copy.bytes, stream);
}

// K of a block for all heads, then V: as most storages have them, so that they travel in one copy.
void CarriedRows::add_blocks(std::span<Walk> walks, bool with_values, CarriedWave& wave) const {
  const uint64_t size = geometry_.block_size;
  uint64_t first = UINT64_MAX, end = 0;  // items, from a range's first on
  for (const Walk& walk : walks) {
    if (walk.to.by_token) continue;
    first = std::min(first, walk.range.slot_begin / size);
    end = std::max(end, (walk.range.slot_end + size - 1) / size);
  }
  for (uint64_t item = first; item < end; ++item)
    for (const bool is_k : {true, false}) {
      if (!is_k && !with_values) continue;
      for (Walk& walk : walks) {
        const uint64_t begin = std::max(walk.range.slot_begin, item * size);
        const uint64_t last = std::min(walk.range.slot_end, (item + 1) * size);
        if (walk.to.by_token || begin >= last) continue;
        const kvasir_lease& lease =
            geometry_.lease(walk.part, item_value(walk.part, walk.range.item_begin + item));
        const auto from = static_cast<uint32_t>(begin - item * size);
        const auto to = std::min(static_cast<uint32_t>(last - item * size), lease.n_tokens);
        if (is_k) add_block(walk, lease, from, to, wave);
        carry(walk, lease, is_k, from, to, wave);
      }
    }
}

// Tokens that follow one another in their block are a block of the wave.
void CarriedRows::add_tokens(Walk& walk, bool with_values, CarriedWave& wave) const {
  const uint64_t end = walk.range.item_begin + walk.range.slot_end;
  for (uint64_t i = walk.range.item_begin + walk.range.slot_begin; i < end;) {
    const uint32_t first = walk.part.items[i];
    const uint32_t begin = first % geometry_.block_size;
    uint32_t n = 1;
    while (i + n < end && begin + n < geometry_.block_size && walk.part.items[i + n] == first + n)
      ++n;
    const kvasir_lease& lease = geometry_.lease(walk.part, first / geometry_.block_size);
    const auto block = static_cast<uint32_t>(walk.blocks.size());
    for (uint32_t t = begin; t < begin + n; ++t)
      walk.items.push_back(block * geometry_.block_size + t);
    add_block(walk, lease, begin, begin + n, wave);
    carry(walk, lease, true, begin, begin + n, wave);
    if (with_values) carry(walk, lease, false, begin, begin + n, wave);
    i += n;
  }
}

// Tokens [begin, end) of the lease, of which the wave's block has no others.
void CarriedRows::add_block(Walk& walk, const kvasir_lease& lease, uint32_t begin, uint32_t end,
                            CarriedWave& wave) const {
  cuda::KvBlock& block = walk.blocks.emplace_back();
  if (begin >= end) return;
  block.first_pos = lease.pos_begin;
  block.n_tokens = end;
  block.format = lease.format;
  if (!is_contiguous(lease.format)) block.format += static_cast<uint32_t>(geometry_.formats.size());
  block.is_one_head = 1;
  if (!lease.token_pos) return;
  block.pos = wave.lists.put(lease.token_pos + begin, (end - begin) * sizeof(uint32_t)) -
              begin * sizeof(uint32_t);
  walk.with_positions.push_back(walk.blocks.size() - 1);
}

bool CarriedRows::is_contiguous(uint32_t format) const {
  const cuda::KvFormat& f = formats_[format];
  return f.k_token_stride == row_bytes(f.k_type, geometry_.head_dim) &&
         f.v_token_stride == row_bytes(f.v_type, geometry_.v_dim);
}

// Rows of K, or of V, of the walk's last block. Nobody reads bytes that no item names.
void CarriedRows::carry(Walk& walk, const kvasir_lease& lease, bool is_k, uint32_t begin,
                        uint32_t end, CarriedWave& wave) const {
  if (begin >= end) return;
  cuda::KvBlock& block = walk.blocks.back();
  const cuda::KvFormat &from = formats_[lease.format], &to = formats_[block.format];
  const uint64_t stride = is_k ? from.k_token_stride : from.v_token_stride;
  const uint64_t to_stride = is_k ? to.k_token_stride : to.v_token_stride;
  const uint64_t head = geometry_.head_of(lease, walk.range.kv_head);
  const std::byte* const rows = static_cast<const std::byte*>(is_k ? lease.k : lease.v) +
                                head * (is_k ? from.k_head_stride : from.v_head_stride) +
                                begin * stride;
  const uint64_t n = end - begin, at = aligned(wave.n_bytes), staged = wave.staged.size();
  if (block.format == lease.format) {
    add_copy({rows, 0, at, n * stride}, wave.copies);
  } else {
    const uint64_t bytes =
        is_k ? row_bytes(to.k_type, geometry_.head_dim) : row_bytes(to.v_type, geometry_.v_dim);
    wave.staged.resize(staged + n * to_stride);
    for (uint64_t i = 0; i < n; ++i)
      std::memcpy(wave.staged.data() + staged + i * to_stride, rows + i * stride, bytes);
    add_copy({nullptr, staged, at, n * to_stride}, wave.copies);
  }
  wave.n_bytes = at + n * to_stride;
  (is_k ? block.k : block.v) = at - begin * to_stride;
}

// Items keep their numbers, by which weights are found; what they name begins with the wave's
// first one.
void CarriedRows::put_lists(std::span<Walk> walks, bool with_values, CarriedWave& wave) const {
  const uint64_t rows = wave.rows.ensure(wave.n_bytes, wave.most_bytes);
  std::vector<cuda::AttentionPart> parts;
  for (Walk& walk : walks) {
    for (cuda::KvBlock& block : walk.blocks) {
      block.k += rows;
      block.v = with_values ? block.v + rows : block.k;
    }
    const uint64_t blocks = wave.lists.put(walk.blocks);
    for (const size_t i : walk.with_positions)
      wave.lists.is_address(blocks + i * sizeof(cuda::KvBlock) + offsetof(cuda::KvBlock, pos));
    const uint64_t first_slot = walk.range.slot_begin;
    if (walk.to.by_token) {
      walk.to.blocks = blocks;
      walk.to.items =
          wave.lists.put(walk.items) - sizeof(uint32_t) * (walk.range.item_begin + first_slot);
    } else {
      walk.to.blocks = blocks - sizeof(cuda::KvBlock) *
                                    (walk.range.item_begin + first_slot / geometry_.block_size);
    }
    parts.push_back(walk.to);
  }
  wave.parts = wave.lists.put(parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint64_t at = wave.parts + i * sizeof(cuda::AttentionPart);
    wave.lists.is_address(at + offsetof(cuda::AttentionPart, blocks));
    if (parts[i].by_token) wave.lists.is_address(at + offsetof(cuda::AttentionPart, items));
  }
}

}  // namespace kvasir::attention
