// What is done to the logits of a piece of query rows before their softmax, per SIMD target.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_PIECE_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_PIECE_LOGITS_INL_H_
#undef KVASIR_KERNELS_PIECE_LOGITS_INL_H_
#else
#define KVASIR_KERNELS_PIECE_LOGITS_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/attention_state.h"
#include "kernels/exp-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/tile_part.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// S^T of a piece: row t holds the logits of key t of the tile, `stride` floats from the next key's;
// columns are query rows, n_rows of them in use, a multiple of kLanes.
struct PieceLogits {
  float* s;
  size_t stride;
  size_t n_rows;
};

// The log-weights [group_size][kTileTokens] of (head, key), for rows first_row ... of the call.
inline void add_weights(const float* weights, uint32_t group_size, size_t first_row,
                        const TilePart& part, const PieceLogits& logits) {
  for (size_t t = part.key_begin; t < part.key_end; ++t) {
    for (size_t r = 0; r < logits.n_rows; ++r) {
      const size_t g = (first_row + r) % group_size;
      logits.s[t * logits.stride + r] += weights[g * kTileTokens + t];
    }
  }
}

inline void cap_logits(float softcap, const TilePart& part, const PieceLogits& logits) {
  const F32 d;
  for (size_t t = part.key_begin; t < part.key_end; ++t) {
    for (size_t r = 0; r < logits.n_rows; r += kLanes) {
      float* at = logits.s + t * logits.stride + r;
      hn::Store(soft_cap(d, hn::Load(d, at), softcap), d, at);
    }
  }
}

// Logits the positions hide become -inf. row_pos [n_rows]: positions of the piece's rows.
inline void mask_logits(const PositionMask& mask, const KvTile& tile, const int32_t* row_pos,
                        const TilePart& part, const PieceLogits& logits) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto near = hn::Set(di, static_cast<int32_t>(std::min<uint32_t>(mask.dist_min, INT32_MAX)));
  const auto far = hn::Set(di, static_cast<int32_t>(std::min<uint32_t>(mask.dist_max, INT32_MAX)));
  const VecF32 hidden = hn::Set(d, kEmptyLse);
  for (size_t t = part.key_begin; t < part.key_end; ++t) {
    const auto k_pos = hn::Set(di, static_cast<int32_t>(tile.pos[t]));
    for (size_t r = 0; r < logits.n_rows; r += kLanes) {
      float* at = logits.s + t * logits.stride + r;
      const auto distance = hn::Sub(hn::Load(di, row_pos + r), k_pos);
      const auto seen = hn::AndNot(hn::VecFromMask(di, hn::Lt(distance, near)),
                                   hn::VecFromMask(di, hn::Lt(distance, far)));
      const auto seen_mask = hn::RebindMask(d, hn::MaskFromVec(seen));
      hn::Store(hn::IfThenElse(seen_mask, hn::Load(d, at), hidden), d, at);
    }
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVASIR_KERNELS_PIECE_LOGITS_INL_H_
