// Keys of four bits: a few are decoded into the L1 cache, then meet all heads of the group.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/nibble_keys.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/nibble_keys.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_NIBBLE_KEYS_ONCE
#define KVASIR_KERNELS_NIBBLE_KEYS_ONCE
namespace kvasir::kernels {

struct NibbleScale {
  float low, step;
};

constexpr size_t kDecodedKeys = 16;  // at a time: 4 KiB of head_dim 64, 8 KiB of 128

inline size_t nibble_bytes(size_t head_dim) { return (head_dim + 7) / 8 * 4; }
// A decoded key holds its even elements, then its odd ones, each run filled up to whole vectors.
inline size_t run_elements(size_t head_dim) { return (nibble_bytes(head_dim) + 15) / 16 * 16; }

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_NIBBLE_KEYS_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

// Elements that the nibbles of kLanes bytes stand for.
HWY_INLINE void decode_bytes(const uint8_t* bytes, VecF32 low, VecF32 step, float* even,
                             float* odd) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint8_t, F32> du8;
  const auto pair = hn::PromoteTo(di, hn::LoadU(du8, bytes));
  const auto lower = hn::ConvertTo(d, hn::And(pair, hn::Set(di, 15)));
  const auto upper = hn::ConvertTo(d, hn::ShiftRight<4>(pair));
  hn::Store(hn::MulAdd(lower, step, low), d, even);
  hn::Store(hn::MulAdd(upper, step, low), d, odd);
}

HWY_INLINE void decode(const void* key, size_t n_bytes, size_t run, float* HWY_RESTRICT row) {
  const F32 d;
  NibbleScale scale;
  std::memcpy(&scale, key, sizeof scale);
  const VecF32 low = hn::Set(d, scale.low), step = hn::Set(d, scale.step);
  const uint8_t* bytes = static_cast<const uint8_t*>(key) + sizeof scale;
  size_t i = 0;
  for (; i + kLanes <= n_bytes; i += kLanes) {
    decode_bytes(bytes + i, low, step, row + i, row + run + i);
  }
  if (i == n_bytes) return;
  HWY_ALIGN uint8_t last[kLanes] = {};
  std::memcpy(last, bytes + i, n_bytes - i);
  decode_bytes(last, low, step, row + i, row + run + i);
}

// q [n_heads, 2 * run] as decoded keys are laid out, zeros where they are filled up;
// rows [kDecodedKeys, 2 * run], zeroed before the first call.
void score_keys(const float* q, size_t n_heads, size_t head_dim, const void* const* keys, size_t n,
                float* score, size_t score_stride, float* rows) {
  const size_t run = run_elements(head_dim), key_bytes = nibble_key_bytes(head_dim);
  const size_t ahead = ahead_rows(key_bytes);
  const float* row[kDecodedKeys];
  for (size_t i = 0; i < kDecodedKeys; ++i) row[i] = rows + i * 2 * run;
  for (size_t begin = 0; begin < n; begin += kDecodedKeys) {
    const size_t count = std::min(kDecodedKeys, n - begin);
    for (size_t i = 0; i < count; ++i) {
      prefetch_row(keys[std::min(begin + i + ahead, n - 1)], key_bytes);
      decode(keys[begin + i], nibble_bytes(head_dim), run, rows + i * 2 * run);
    }
    dot_heads(q, 2 * run, n_heads, row, count, 0, 2 * run, score + begin, score_stride);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(score_keys);

size_t nibble_key_bytes(size_t head_dim) { return sizeof(NibbleScale) + nibble_bytes(head_dim); }

size_t nibble_score_scratch_bytes(size_t n_heads, size_t head_dim) {
  return (n_heads + kDecodedKeys) * 2 * run_elements(head_dim) * sizeof(float);
}

void score_nibble_keys(const float* q, size_t n_heads, size_t head_dim, const void* const* keys,
                       size_t n, float* score, size_t score_stride, void* scratch) {
  if (n == 0) return;
  const size_t run = run_elements(head_dim);
  auto* packed = static_cast<float*>(scratch);
  std::fill_n(packed, (n_heads + kDecodedKeys) * 2 * run, 0.0f);
  for (size_t g = 0; g < n_heads; ++g) {
    for (size_t d = 0; d < head_dim; ++d) {
      packed[g * 2 * run + d % 2 * run + d / 2] = q[g * head_dim + d];
    }
  }
  HWY_DYNAMIC_DISPATCH(score_keys)
  (packed, n_heads, head_dim, keys, n, score, score_stride, packed + n_heads * 2 * run);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
