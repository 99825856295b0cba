// Cuts a list of K and V rows into tiles of row pointers, so that the loops over elements see
// neither blocks nor token lists. Internal to kernels/.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"

namespace kvasir::kernels {

inline constexpr size_t kTileTokens = 128;
// The most keys per step of a product over a tile: buffers end that far behind it.
inline constexpr size_t kKeyPadding = 8;

// The loops work on groups of rows of about 1 KiB, in fours, and meanwhile, where rows lie in no
// pieces (PiecesAhead), ask for the group that lies 8 KiB (at most 64 rows) ahead. Measured, with
// all of it asked for before, on Zen 4 with one thread and f16: groups of 1 and 2 KiB reach over 90
// % of the speed in cache, 4 KiB 70 %; less than 8 KiB ahead loses a third. On Zen 5 with two
// threads, from memory, 1 KiB takes a tenth less time than 2 KiB; 6 and 8 KiB ahead are the same, 4
// and 16 lose 2 to 4 %. Line by line on Sapphire Rapids: 4 to 16 KiB are the same, 2 KiB loses a
// tenth, 1 KiB a quarter.
inline constexpr size_t kMaxAheadRows = 64;
constexpr size_t ahead_rows(size_t row_bytes) {
  return std::clamp<size_t>(8192 / row_bytes, 1, kMaxAheadRows);
}
constexpr size_t group_rows(size_t row_bytes) {
  return std::clamp<size_t>((1024 / row_bytes + 3) / 4 * 4, 4, 16);
}

// The K or the V rows of a tile.
struct TileRows {
  const uint8_t* const* rows;
  size_t n, row_bytes;
  bool in_one_piece;  // as KvTile's
  const uint8_t* operator[](size_t i) const {
    return in_one_piece ? rows[0] + i * row_bytes : rows[i];
  }
};

struct KvTile {
  const uint8_t* k[kTileTokens + kMaxAheadRows];  // past n: what is read after the last row
  const uint8_t* v[kTileTokens + kMaxAheadRows];
  uint32_t pos[kTileTokens];
  size_t n = 0;
  bool weighted = false;  // some row has a log-weight; only then is the weight array written
  // k[0] and v[0] alone are set, and the other rows lie behind those; as TileNeeds asks for.
  bool in_one_piece = false;

  TileRows k_rows(size_t row_bytes) const { return {k, n, row_bytes, in_one_piece}; }
  TileRows v_rows(size_t row_bytes) const { return {v, n, row_bytes, in_one_piece}; }
};

// What the reader of tiles needs.
struct TileNeeds {
  bool positions = true;
  // Bytes of a row. Not 0: of rows that lie behind each other, of K and of V, the pointers to the
  // first suffice.
  size_t k_bytes = 0, v_bytes = 0;
};

// rows [n .. n + kMaxAheadRows) become the first of `next`, the last row repeated when there are
// fewer.
inline void link_ahead(const uint8_t** rows, size_t n, const uint8_t* const* next, size_t n_next) {
  const size_t n_linked = std::min(n_next, kMaxAheadRows);
  std::copy_n(next, n_linked, rows + n);
  std::fill(rows + n + n_linked, rows + n + kMaxAheadRows, rows[n + n_linked - 1]);
}

// Walks over the rows of `items` once. Tiles cross item borders: small blocks fill whole tiles.
class TileCursor {
 public:
  TileCursor() = default;  // over nothing
  TileCursor(std::span<const KvRows> items, uint32_t group_size, const TileNeeds& needs = {})
      : items_(items), group_size_(group_size), needs_(needs) {
    skip_empty();
  }

  // Fills the next tile; false at the end. weights [group_size][kTileTokens].
  bool next(KvTile& tile, float* weights) {
    tile.n = 0;
    tile.weighted = tile.in_one_piece = false;
    while (tile.n < kTileTokens && item_ < items_.size()) {
      const KvRows& item = items_[item_];
      const size_t n = std::min<size_t>(kTileTokens - tile.n, item.end - row_);
      add_rows(item, n, tile);
      add_weights(item, n, tile, weights);
      tile.n += n;
      row_ += static_cast<uint32_t>(n);
      skip_empty();
    }
    return tile.n != 0;
  }

 private:
  void skip_empty() {
    while (item_ < items_.size()) {
      if (!started_) {
        row_ = items_[item_].begin;
        started_ = true;
      }
      if (row_ < items_[item_].end) return;
      ++item_;
      started_ = false;
    }
  }

  // Pointers to n rows, each `stride` bytes behind the one before.
  static void point(const uint8_t** rows, size_t n, const uint8_t* first, uint64_t stride) {
    for (size_t i = 0; i < n; ++i) rows[i] = first + i * stride;
  }

  bool is_piece(const KvRows& item) const {
    return needs_.k_bytes != 0 && !item.tokens && !item.pos && item.v &&
           item.k_token_stride == needs_.k_bytes && item.v_token_stride == needs_.v_bytes;
  }

  void add_rows(const KvRows& item, size_t n, KvTile& tile) const {
    const auto* k = static_cast<const uint8_t*>(item.k);
    const auto* v = static_cast<const uint8_t*>(item.v);
    if (tile.in_one_piece) {  // the rows so far
      point(tile.k, tile.n, tile.k[0], needs_.k_bytes);
      point(tile.v, tile.n, tile.v[0], needs_.v_bytes);
    }
    tile.in_one_piece = tile.n == 0 && is_piece(item);
    if (!item.tokens && !item.pos && v) {  // nearly always: in vectors
      const size_t n_pointers = tile.in_one_piece ? 1 : n;
      point(tile.k + tile.n, n_pointers, k + row_ * item.k_token_stride, item.k_token_stride);
      point(tile.v + tile.n, n_pointers, v + row_ * item.v_token_stride, item.v_token_stride);
      if (!needs_.positions) return;
      const uint32_t first_pos = item.first_pos + row_;
      for (size_t i = 0; i < n; ++i) tile.pos[tile.n + i] = first_pos + static_cast<uint32_t>(i);
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      const uint32_t row = row_ + static_cast<uint32_t>(i);
      const uint32_t token = item.tokens ? item.tokens[row] : row;
      tile.k[tile.n + i] = k + token * item.k_token_stride;
      tile.v[tile.n + i] = v ? v + token * item.v_token_stride : nullptr;
      tile.pos[tile.n + i] = item.pos ? item.pos[token] : item.first_pos + token;
    }
  }

  void add_weights(const KvRows& item, size_t n, KvTile& tile, float* weights) const {
    const bool has = item.log_weight != nullptr && item.weight_width != 0;
    if (!has && !tile.weighted) return;
    for (size_t g = 0; g < group_size_; ++g) {
      float* out = weights + g * kTileTokens;
      if (!tile.weighted) std::fill_n(out, tile.n, 0.0f);  // rows before the first weight
      for (size_t i = 0; i < n; ++i) out[tile.n + i] = has ? weight(item, row_ + i, g) : 0.0f;
    }
    tile.weighted = true;
  }

  static float weight(const KvRows& item, size_t row, size_t g) {
    return item.log_weight[row * item.weight_row_stride + (item.weight_width == 1 ? 0 : g)];
  }

  std::span<const KvRows> items_;
  uint32_t group_size_ = 1;
  TileNeeds needs_;
  size_t item_ = 0;
  uint32_t row_ = 0;
  bool started_ = false;
};

}  // namespace kvasir::kernels
