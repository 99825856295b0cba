// Which keys of a tile a piece of query rows may see: whole tiles are skipped, the diagonal is cut.
// Internal to kernels/.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_tile.h"

namespace kvasir::kernels {

// Positions of a tile's keys, looked at once for all pieces of rows.
struct TileSpan {
  int64_t low = 0;
  int64_t high = 0;
  bool consecutive = false;  // low, low + 1, ... in the order of the tile
};

inline TileSpan span_of(const KvTile& tile) {
  const auto [low, high] = std::minmax_element(tile.pos, tile.pos + tile.n);
  TileSpan span{*low, *high, true};
  for (size_t t = 1; t < tile.n; ++t) {
    span.consecutive = span.consecutive && tile.pos[t] == tile.pos[t - 1] + 1;
  }
  return span;
}

// What one tile of keys is to one piece of query rows.
struct TilePart {
  size_t key_begin = 0;
  size_t key_end = 0;   // keys outside are seen by no row of the piece
  bool masked = false;  // some row does not see all of them; true where the part is not the tile
};

// Of rows with positions in [q_low, q_high]; the distances are pos_q - pos_k. tile.n > 0.
inline TilePart visible_part(const KvTile& tile, const TileSpan& keys, const PositionMask& mask,
                             int64_t q_low, int64_t q_high) {
  if (!mask.q_pos) return {0, tile.n, false};
  const int64_t near = mask.dist_min;
  const int64_t far = mask.dist_max == UINT32_MAX ? INT64_MAX : int64_t{mask.dist_max};
  if (q_high - keys.low < near || q_low - keys.high >= far) return {0, 0, false};
  TilePart part{0, tile.n, q_low - keys.high < near || q_high - keys.low >= far};
  if (!keys.consecutive) return part;  // only the mask is right
  part.key_end = static_cast<size_t>(std::min(keys.high, q_high - near) - keys.low + 1);
  if (far != INT64_MAX) {
    part.key_begin = static_cast<size_t>(std::max<int64_t>(0, q_low - far + 1 - keys.low));
  }
  return part;
}

}  // namespace kvasir::kernels
