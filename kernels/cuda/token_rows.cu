// See token_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/token_rows.h"

#include <cmath>

#include "kernels/cuda/key_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kMoveThreads = 128;

KVASIR_DEVICE float nan() { return bits_to_float(0x7fc00000u); }

KVASIR_DEVICE uint32_t row_bytes(KvType type, uint32_t dim) {
  switch (type) {
    case KvType::kF32:
      return 4 * dim;
    case KvType::kQ8_0:
      return dim / 32 * 34;
    case KvType::kQ4_0:
      return dim / 32 * 18;
    case KvType::kFp8:
      return dim;
    default:
      return 2 * dim;
  }
}

// The scale as it is stored, and 1 / scale or 0.
struct Scale {
  uint32_t bits;
  float inverse;
};
KVASIR_DEVICE Scale scale_of(float exact, bool is_finite) {
  // The sum is +0 where the scale is -0, as on the host.
  uint32_t bits = pack_f16(exact + (is_finite ? 0.0f : nan()), 0.0f) & 0xffffu;
  const float stored = half_to_float(bits);
  if (fabsf(stored) > 65504.0f) bits = 0x7fffu;
  return {bits, stored != 0.0f ? 1.0f / stored : 0.0f};
}
KVASIR_DEVICE int32_t step_of(float x, float inverse, float low, float high) {
  return static_cast<int32_t>(fmaxf(low, fminf(high, rintf(x * inverse))));
}

// A lane per element.
KVASIR_DEVICE void store_q8_0(float x, uint64_t group) {
  const uint32_t lane = thread_x();
  float largest = fabsf(x);
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
    largest = fmaxf(largest, shuffle_xor(kAllLanes, largest, lanes));
  const bool is_finite = ballot(kAllLanes, fabsf(x) < INFINITY) == kAllLanes;
  const Scale scale = scale_of(largest / 127.0f, is_finite);
  if (lane == 0) *global<uint16_t>(group) = static_cast<uint16_t>(scale.bits);
  *global<uint8_t>(group + 2 + lane) =
      static_cast<uint8_t>(step_of(x, scale.inverse, -127.0f, 127.0f));
}
KVASIR_DEVICE void store_q4_0(float x, uint64_t group) {
  const uint32_t lane = thread_x();
  float extreme = x;
  uint32_t first = lane;
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    const float other = shuffle_xor(kAllLanes, extreme, lanes);
    const uint32_t other_first = shuffle_xor(kAllLanes, first, lanes);
    const float mine = fabsf(extreme), its = fabsf(other);
    const bool takes = its > mine || (its == mine && other_first < first);
    extreme = takes ? other : extreme;
    first = takes ? other_first : first;
  }
  const bool is_finite = ballot(kAllLanes, fabsf(x) < INFINITY) == kAllLanes;
  const Scale scale = scale_of(extreme / -8.0f, is_finite);
  const auto step = static_cast<uint32_t>(step_of(x, scale.inverse, -8.0f, 7.0f) + 8);
  const uint32_t upper = shuffle(kAllLanes, step, lane % 16 + 16);
  if (lane == 0) *global<uint16_t>(group) = static_cast<uint16_t>(scale.bits);
  if (lane < 16) *global<uint8_t>(group + 2 + lane) = static_cast<uint8_t>(step | upper << 4);
}

// Rounds at bit 20 of the f32, or, below 2^-6, by a sum whose last bit is the last one of the
// result.
KVASIR_DEVICE uint32_t fp8_bits(float x) {
  const uint32_t bits = float_to_bits(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
  if (size >= 0x7f800000u) return sign | 0x7fu;
  if (fabsf(x) < 0.015625f) return sign | (float_to_bits(fabsf(x) + 16384.0f) - 0x46800000u);
  const uint32_t code = (size + (size >> 20 & 1u) + 0x7ffffu - (120u << 23)) >> 20;
  return sign | (code < 0x7eu ? code : 0x7eu);
}

KVASIR_DEVICE void store_row(KvType type, uint64_t from, uint32_t dim, uint64_t to) {
  const Global<const float> x = global<const float>(from);
  if (type == KvType::kQ8_0 || type == KvType::kQ4_0) {
    const uint64_t bytes = type == KvType::kQ8_0 ? 34 : 18;
    for (uint32_t group = 0; group < dim / 32; ++group) {
      const float value = x[uint64_t{32} * group + thread_x()];
      if (type == KvType::kQ8_0) {
        store_q8_0(value, to + bytes * group);
      } else {
        store_q4_0(value, to + bytes * group);
      }
    }
    return;
  }
  for (uint32_t d = thread_x(); d < dim; d += kWarpLanes) {
    const float value = x[d];
    if (type == KvType::kF32) {
      global<float>(to)[d] = value;
    } else if (type == KvType::kFp8) {
      global<uint8_t>(to)[d] = static_cast<uint8_t>(fp8_bits(value));
    } else {
      const uint32_t bits = type == KvType::kF16 ? pack_f16(value, 0.0f) : pack_bf16(value, 0.0f);
      global<uint16_t>(to)[d] = static_cast<uint16_t>(bits & 0xffffu);
    }
  }
}

KVASIR_KERNEL void KVASIR_BOUNDS(kWarpLanes)
    store_rows(const TokenRows rows, uint64_t k, uint64_t v) {
  const auto row = load_at<TokenRow>(rows.rows + sizeof(TokenRow) * block_x());
  if (block_y() == 0) {
    store_row(rows.k_type, k + 4 * row.at * rows.head_dim, rows.head_dim, row.k);
  } else {
    store_row(rows.v_type, v + 4 * row.at * rows.v_dim, rows.v_dim, row.v);
  }
}

// Bytes [0, bytes) in units of T, which divide them: the calling thread's.
template <class T>
KVASIR_DEVICE void copy_units(uint64_t from, uint64_t to, uint32_t bytes) {
  for (uint32_t i = thread_x(); i < bytes / sizeof(T); i += kWarpLanes)
    global<T>(to)[i] = load_at<T>(from + sizeof(T) * i);
}
// Rows of fp8 may be odd, and lie at odd addresses.
KVASIR_DEVICE void copy_bytes(uint64_t from, uint64_t to, uint32_t bytes) {
  if ((from | to | bytes) % 2 == 0)
    copy_units<uint16_t>(from, to, bytes);
  else
    copy_units<uint8_t>(from, to, bytes);
}

KVASIR_KERNEL void KVASIR_BOUNDS(kWarpLanes)
    carry_rows(const TokenRows rows, uint64_t packed, bool packs) {
  const auto row = load_at<TokenRow>(rows.rows + sizeof(TokenRow) * block_x());
  const bool is_k = block_y() == 0;
  const uint32_t k_bytes = row_bytes(rows.k_type, rows.head_dim);
  const uint64_t block = is_k ? row.k : row.v, at = packed + row.at + (is_k ? 0 : k_bytes);
  copy_bytes(packs ? block : at, packs ? at : block,
             is_k ? k_bytes : row_bytes(rows.v_type, rows.v_dim));
}

// Rows of K or of V of one kv head, in units of T.
template <class T>
KVASIR_DEVICE void move_rows(const TokenMoves& moves, bool is_k) {
  const uint32_t head = block_x();
  const uint32_t row = is_k ? moves.k_row_bytes : moves.v_row_bytes;
  const uint64_t head_bytes = head * (is_k ? moves.k_head_stride : moves.v_head_stride);
  for (uint32_t at = sizeof(T) * thread_x(); at < row; at += sizeof(T) * kMoveThreads) {
    for (uint32_t i = 0; i < moves.n_moves; ++i) {
      const auto move = load_at<TokenMove>(moves.moves + sizeof(TokenMove) * i);
      if (move.kv_head != UINT32_MAX && move.kv_head != head) continue;
      const uint64_t from =
          (is_k ? move.from_k : move.from_v) + (move.from_one_head ? 0 : head_bytes) + at;
      const uint64_t to = (is_k ? move.to_k : move.to_v) + (move.to_one_head ? 0 : head_bytes) + at;
      for (uint32_t t = 0; t < move.n_tokens; ++t) {
        const uint64_t token = uint64_t{t} * row;
        *global<T>(to + token) = load_at<T>(from + token);
      }
    }
  }
}

KVASIR_KERNEL void KVASIR_BOUNDS(kMoveThreads) carry_tokens(const TokenMoves moves) {
  const bool is_k = block_y() == 0;
  if ((is_k ? moves.k_row_bytes : moves.v_row_bytes) % 2 == 0)
    move_rows<uint16_t>(moves, is_k);
  else
    move_rows<uint8_t>(moves, is_k);
}

LaunchShape shape_of(const TokenRows& rows) {
  return {.blocks_x = rows.n_rows, .blocks_y = 2, .threads = kWarpLanes};
}

}  // namespace

void write_rows(const TokenRows& rows, uint64_t k, uint64_t v, Stream stream) {
  launch(store_rows, shape_of(rows), stream, rows, k, v);
}
void pack_rows(const TokenRows& rows, uint64_t packed, Stream stream) {
  launch(carry_rows, shape_of(rows), stream, rows, packed, true);
}
void unpack_rows(const TokenRows& rows, uint64_t packed, Stream stream) {
  launch(carry_rows, shape_of(rows), stream, rows, packed, false);
}
void move_tokens(const TokenMoves& moves, Stream stream) {
  if (moves.n_moves == 0) return;
  launch(carry_tokens, {.blocks_x = moves.n_kv_heads, .blocks_y = 2, .threads = kMoveThreads},
         stream, moves);
}

}  // namespace kvasir::cuda
