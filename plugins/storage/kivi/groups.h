// K and V of one kv head of a block as codes of 2 or 4 bits between the least and the greatest
// element of a group: KIVI (arXiv:2402.02750).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::kivi {

// x -> q = round((x - low) / (high - low) * (2^bits - 1)), to nearest, ties to even; read back as
// f16(low + q / (2^bits - 1) * (high - low)). KIVI stores low and (high - low) / (2^bits - 1)
// instead, in as many bits; with both ends, these come back exactly, and rows that were read back
// and are quantised again give the same rows. Where low = high all are that; a group that holds
// what is not finite reads back as NaN.
//
// K: a group is group_size consecutive tokens of one channel. V: group_size consecutive channels of
// one token. Codes lie token by token, channels from the low bits of a byte on.
struct RowShape {
  uint32_t n_tokens = 0;  // of a block, a multiple of group_size
  uint32_t dim = 0;       // channels; dim * bits is a multiple of 8. Of V: of group_size
  uint32_t group_size = 0;
  uint32_t bits = 0;  // 2 or 4
  bool per_channel = false;

  uint32_t n_groups() const { return n_tokens * dim / group_size; }
  uint64_t row_bytes() const { return uint64_t{dim} * bits / 8; }
  // low of every group, then high of every group, f16, then codes.
  uint64_t bytes() const { return uint64_t{n_groups()} * 4 + n_tokens * row_bytes(); }
};

// Work space of a thread. After reserve() no call on that shape allocates.
struct RowScratch {
  std::vector<float> low, high, rows;
  std::vector<uint16_t> levels;
  void reserve(const RowShape& shape);
};

//   rows  [n_tokens][dim] f16, row_stride elements apart
//   to    [shape.bytes()]; must not overlap
void quantise(const RowShape& shape, const uint16_t* rows, size_t row_stride, std::byte* to,
              RowScratch& scratch);
// Reads shape.bytes(), writes n_tokens * dim elements: bound by table look-ups, one per element.
void expand(const RowShape& shape, const std::byte* from, uint16_t* rows, size_t row_stride,
            RowScratch& scratch);

}  // namespace kvasir::kivi
