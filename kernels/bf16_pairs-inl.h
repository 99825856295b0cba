// Pairs of bf16, their dot products and the tiles of AMX, for AVX-512 targets. Highway has no
// target with these instructions: whoever includes this pushes KVASIR_BF16_ATTRIBUTES where
// KVASIR_HAS_BF16_PAIRS is 1, and asks the CPU beside Highway.
// SPDX-License-Identifier: Apache-2.0
#if defined(KVASIR_KERNELS_BF16_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVASIR_KERNELS_BF16_PAIRS_INL_H_
#undef KVASIR_KERNELS_BF16_PAIRS_INL_H_
#else
#define KVASIR_KERNELS_BF16_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_BF16_PAIRS_ONCE
#define KVASIR_KERNELS_BF16_PAIRS_ONCE
#define KVASIR_BF16_ATTRIBUTES HWY_TARGET_STR ",avx512bf16,amx-tile,amx-bf16"
namespace kvasir::kernels {

// Rows of a tile of AMX, and the pairs of each. Columns of a block of 32 by 32 results.
inline constexpr size_t kAmxRows = 16, kAmxPairs = 16, kAmxColumns = 32;

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_BF16_PAIRS_ONCE

#undef KVASIR_HAS_BF16_PAIRS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define KVASIR_HAS_BF16_PAIRS 1
#include <immintrin.h>
#else
#define KVASIR_HAS_BF16_PAIRS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {

// Whether this target and this CPU have the dot products of pairs and the conversion to them.
inline bool has_bf16_pairs() {
#if KVASIR_HAS_BF16_PAIRS
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if KVASIR_HAS_BF16_PAIRS
HWY_BEFORE_NAMESPACE();
HWY_PUSH_ATTRIBUTES(KVASIR_BF16_ATTRIBUTES)
namespace kvasir::kernels::HWY_NAMESPACE {

using PairTag = hn::RebindToUnsigned<F32>;
using VecPairs = hn::Vec<PairTag>;

// Two vectors side by side, rounded to bf16: all of `first`, then all of `second`.
HWY_INLINE VecPairs narrow(VecF32 first, VecF32 second) {
  return VecPairs{reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.raw, first.raw))};
}

// The same with lane i of both as pair i.
HWY_INLINE VecPairs zip(VecF32 first, VecF32 second) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return VecPairs{_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), narrow(first, second).raw)};
}

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles hold 16 rows of 64 bytes. What a thread configures is its own until it releases
// it; oneDNN, which runs on the same threads, does both in each of its calls.
class ConfiguredTiles {
 public:
  explicit ConfiguredTiles(bool wanted) : wanted_(wanted) {
    if (!wanted) return;
    TileConfig config;
    std::fill_n(config.row_bytes, 8, uint16_t{64});
    std::fill_n(config.rows, 8, static_cast<uint8_t>(kAmxRows));
    _tile_loadconfig(&config);
  }
  ~ConfiguredTiles() {
    if (wanted_) _tile_release();
  }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;

 private:
  bool wanted_;
};

// c[i, 0 .. 32) (+)= sum_k a[i, k] b[k, ...] for 32 rows i, or for the first 16 of them, all sums
// in tiles.
//   a, a_below  16 rows each, a_row bytes apart; a_step pairs from one depth of 16 to the next
//   b           pairs [depth, kAmxColumns], contiguous
//   c           f32 [32, kAmxColumns], contiguous
//   ask()       between the products of each depth of 16: to ask memory for what is read next
template <bool kBelow, class Ask>
HWY_INLINE void tile_product(const uint32_t* a, const uint32_t* a_below, size_t a_row,
                             size_t a_step, const uint32_t* b, size_t depth, bool add, float* c,
                             const Ask& ask) {
  constexpr size_t kRow = kAmxColumns * sizeof(float);
  float* c_below = c + kAmxRows * kAmxColumns;
  if (add) {
    _tile_loadd(0, c, kRow);
    _tile_loadd(1, c + kAmxPairs, kRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  if (kBelow && add) {
    _tile_loadd(2, c_below, kRow);
    _tile_loadd(3, c_below + kAmxPairs, kRow);
  } else if (kBelow) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (size_t k = 0; k < depth; k += kAmxPairs) {
    _tile_loadd(4, a, a_row);
    _tile_loadd(6, b + k * kAmxColumns, kRow);
    _tile_loadd(7, b + k * kAmxColumns + kAmxPairs, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    ask();
    a += a_step;
    if constexpr (kBelow) {
      _tile_loadd(5, a_below, a_row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a_below += a_step;
    }
  }
  _tile_stored(0, c, kRow);
  _tile_stored(1, c + kAmxPairs, kRow);
  if constexpr (kBelow) {
    _tile_stored(2, c_below, kRow);
    _tile_stored(3, c_below + kAmxPairs, kRow);
  }
}

}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
HWY_AFTER_NAMESPACE();
#endif  // KVASIR_HAS_BF16_PAIRS

#endif  // KVASIR_KERNELS_BF16_PAIRS_INL_H_
