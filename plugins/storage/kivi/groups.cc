// See groups.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/kivi/groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/convert.h"

namespace kvasir::kivi {
namespace {

using kernels::ElementType;

// Tokens that share their groups of K: one after another, a tile of rows. Of V: one token.
uint32_t tile_tokens(const RowShape& s) { return s.per_channel ? s.group_size : 1; }
uint32_t tile_groups(const RowShape& s) { return s.per_channel ? s.dim : s.dim / s.group_size; }
uint32_t group_of(const RowShape& s, uint32_t channel) {
  return s.per_channel ? channel : channel / s.group_size;
}

// Of the groups of one tile; rows [tile_tokens][dim].
void find_ends(const RowShape& s, const float* rows, float* low, float* high) {
  const uint32_t n = tile_groups(s);
  std::fill(low, low + n, std::numeric_limits<float>::infinity());
  std::fill(high, high + n, -std::numeric_limits<float>::infinity());
  for (uint32_t t = 0; t < tile_tokens(s); ++t)
    for (uint32_t c = 0; c < s.dim; ++c) {
      const float x = rows[t * s.dim + c];
      const uint32_t g = group_of(s, c);
      if (!std::isfinite(x)) low[g] = high[g] = std::numeric_limits<float>::quiet_NaN();
      low[g] = std::min(low[g], x);  // NaN stays
      high[g] = std::max(high[g], x);
    }
}

uint32_t code_of(float x, float low, float high, uint32_t most) {
  if (!(high > low)) return 0;
  const double at = (double{x} - low) / (double{high} - low) * most;
  return static_cast<uint32_t>(std::clamp<long>(std::lrint(at), 0, most));
}

// levels[g * (most + 1) + q] = what code q of group g stands for, as f16.
void find_levels(const RowShape& s, const float* low, const float* high, RowScratch& scratch) {
  const uint32_t most = (1u << s.bits) - 1;
  const size_t n = size_t{tile_groups(s)} * (most + 1);
  scratch.rows.resize(n);
  scratch.levels.resize(n);
  for (uint32_t g = 0; g < tile_groups(s); ++g)
    for (uint32_t q = 0; q <= most; ++q) {
      const double high_share = static_cast<double>(q) / most;
      scratch.rows[g * (most + 1) + q] =
          static_cast<float>(low[g] * (1.0 - high_share) + high[g] * high_share);
    }
  kernels::convert_from_f32(ElementType::kF16, scratch.rows.data(), scratch.levels.data(), n);
}

}  // namespace

void RowScratch::reserve(const RowShape& s) {
  const size_t n = size_t{tile_groups(s)} << s.bits;
  low.reserve(tile_groups(s));
  high.reserve(tile_groups(s));
  rows.reserve(std::max(n, size_t{tile_tokens(s)} * s.dim));
  levels.reserve(n);
}

void quantise(const RowShape& s, const uint16_t* rows, size_t row_stride, std::byte* to,
              RowScratch& scratch) {
  const uint32_t most = (1u << s.bits) - 1, per_byte = 8 / s.bits, n = tile_groups(s);
  auto* ends = reinterpret_cast<uint16_t*>(to);
  auto* codes = reinterpret_cast<uint8_t*>(to) + uint64_t{s.n_groups()} * 4;
  scratch.low.resize(n);
  scratch.high.resize(n);
  scratch.rows.resize(size_t{tile_tokens(s)} * s.dim);
  for (uint32_t first = 0; first < s.n_tokens; first += tile_tokens(s)) {
    float* const tile = scratch.rows.data();
    for (uint32_t t = 0; t < tile_tokens(s); ++t)
      kernels::convert_to_f32(ElementType::kF16, rows + (first + t) * row_stride, tile + t * s.dim,
                              s.dim);
    float *low = scratch.low.data(), *high = scratch.high.data();
    find_ends(s, tile, low, high);
    kernels::convert_from_f32(ElementType::kF16, low, ends, n);
    kernels::convert_from_f32(ElementType::kF16, high, ends + s.n_groups(), n);
    ends += n;
    for (uint32_t t = 0; t < tile_tokens(s); ++t)
      for (uint32_t c = 0; c < s.dim; c += per_byte) {
        uint32_t byte = 0;
        for (uint32_t i = 0; i < per_byte; ++i) {
          const uint32_t g = group_of(s, c + i);
          byte |= code_of(tile[t * s.dim + c + i], low[g], high[g], most) << (i * s.bits);
        }
        *codes++ = static_cast<uint8_t>(byte);
      }
  }
}

void expand(const RowShape& s, const std::byte* from, uint16_t* rows, size_t row_stride,
            RowScratch& scratch) {
  const uint32_t most = (1u << s.bits) - 1, per_byte = 8 / s.bits, n = tile_groups(s);
  const auto* ends = reinterpret_cast<const uint16_t*>(from);
  const auto* codes = reinterpret_cast<const uint8_t*>(from) + uint64_t{s.n_groups()} * 4;
  scratch.low.resize(n);
  scratch.high.resize(n);
  for (uint32_t first = 0; first < s.n_tokens; first += tile_tokens(s)) {
    kernels::convert_to_f32(ElementType::kF16, ends, scratch.low.data(), n);
    kernels::convert_to_f32(ElementType::kF16, ends + s.n_groups(), scratch.high.data(), n);
    ends += n;
    find_levels(s, scratch.low.data(), scratch.high.data(), scratch);
    const uint16_t* const levels = scratch.levels.data();
    for (uint32_t t = 0; t < tile_tokens(s); ++t) {
      uint16_t* const row = rows + (first + t) * row_stride;
      for (uint32_t c = 0; c < s.dim; c += per_byte) {
        const uint32_t byte = *codes++;
        for (uint32_t i = 0; i < per_byte; ++i)
          row[c + i] = levels[group_of(s, c + i) * (most + 1) + (byte >> (i * s.bits) & most)];
      }
    }
  }
}

}  // namespace kvasir::kivi
