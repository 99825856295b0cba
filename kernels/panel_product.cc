// Rows times a panel of weights: each weight vector is loaded once and used for a tile of rows
// whose sums stay in registers.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/panel_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/panel_product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/rows-inl.h"

#ifndef KVASIR_KERNELS_PANEL_PRODUCT_ONCE
#define KVASIR_KERNELS_PANEL_PRODUCT_ONCE
#if HWY_ARCH_X86
#include <xmmintrin.h>
#endif

namespace kvasir::kernels {

// While it lives, this thread takes subnormal operands and results as zero.
class FlushSubnormals {
#if HWY_ARCH_X86
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kAreZero = 0x40;
  unsigned before_;
#else
 public:
  FlushSubnormals() {}
#endif
};

}  // namespace kvasir::kernels
#endif  // KVASIR_KERNELS_PANEL_PRODUCT_ONCE

HWY_BEFORE_NAMESPACE();
namespace kvasir::kernels::HWY_NAMESPACE {
namespace {

using PanelTag = hn::CappedTag<float, 16>;
using PanelVec = hn::Vec<PanelTag>;
inline constexpr size_t kPanelLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
// Inputs handled before the next tile of columns or rows: of f32, 256 x 64 are 64 KiB, which the
// second-level cache still holds when they are read again; 64 x 64 stay in the first, which narrow
// vectors need, since they read them more often.
inline constexpr size_t kChunk = HWY_TARGET <= HWY_AVX3 ? 256 : 64;

template <size_t kRows, size_t kVectors>
using Sums = PanelVec[kRows][kVectors];

// sum[r] += x[r, k] * w[k]
template <size_t kRows, size_t kVectors>
HWY_INLINE void add_products(const float* HWY_RESTRICT x, size_t x_stride, const PanelVec* row,
                             Sums<kRows, kVectors>& sum) {
  const PanelTag d;
  for (size_t r = 0; r < kRows; ++r) {
    const PanelVec xk = hn::Set(d, x[r * x_stride]);
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(xk, row[v], sum[r][v]);
  }
}

// T: float, hwy::float16_t or hwy::bfloat16_t.
template <Ahead kAhead, size_t kRows, size_t kVectors, class T>
HWY_INLINE void inputs(const float* HWY_RESTRICT x, size_t x_stride, const T* HWY_RESTRICT w,
                       size_t n, Sums<kRows, kVectors>& sum) {
  const PanelTag d;
  for (size_t k = 0; k < n; ++k) {
    prefetch_ahead<kAhead>(w + k * kPanelWidth, kPanelWidth * sizeof(T));
    PanelVec row[kVectors];
    for (size_t v = 0; v < kVectors; ++v)
      row[v] = load_row(d, w + k * kPanelWidth + v * kPanelLanes);
    add_products<kRows, kVectors>(x + k, x_stride, row, sum);
  }
}

// A pair of bf16 is a lane of 32 bits: its upper half is the odd input as f32, its lower half,
// shifted up, the even one.
template <Ahead kAhead, size_t kRows, size_t kVectors>
HWY_INLINE void inputs(const float* HWY_RESTRICT x, size_t x_stride, const uint32_t* HWY_RESTRICT w,
                       size_t n, Sums<kRows, kVectors>& sum) {
  const PanelTag d;
  const hn::RebindToUnsigned<PanelTag> du;
  for (size_t k = 0; k < n; k += 2) {
    prefetch_ahead<kAhead>(w + k / 2 * kPanelWidth, kPanelWidth * sizeof *w);
    PanelVec even[kVectors], odd[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const auto pairs = hn::LoadU(du, w + k / 2 * kPanelWidth + v * kPanelLanes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
      odd[v] = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
    }
    if (k + 1 < n) add_products<kRows, kVectors>(x + k + 1, x_stride, odd, sum);
    add_products<kRows, kVectors>(x + k, x_stride, even, sum);
  }
}

// sums[r, 0..V vectors) += x[r, 0..n) * w[0..n, 0..V vectors)
template <Ahead kAhead, size_t kRows, size_t kVectors, class T>
HWY_INLINE void tile(const float* HWY_RESTRICT x, size_t x_stride, const T* HWY_RESTRICT w,
                     size_t n, float* HWY_RESTRICT sums) {
  const PanelTag d;
  Sums<kRows, kVectors> sum;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::Load(d, sums + r * kPanelWidth + v * kPanelLanes);
    }
  }
  inputs<kAhead, kRows, kVectors>(x, x_stride, w, n, sum);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], d, sums + r * kPanelWidth + v * kPanelLanes);
    }
  }
}

// Most rows of a tile. With 16 registers 12 sums hide the latency of a multiply-add, 8 do not.
inline constexpr size_t kTileRows = HWY_TARGET <= HWY_AVX3 ? 4 : 6;

// All 64 columns of kRows rows; as many columns at a time as the registers hold sums for.
// `first_read`: these inputs of the panel have not been read so far.
template <size_t kRows, class T>
HWY_NOINLINE void rows_tile(const float* x, size_t x_stride, const T* w, size_t n, bool first_read,
                            float* sums) {
  constexpr size_t kRegisters = HWY_TARGET <= HWY_AVX3 ? 16 : 8;
  constexpr size_t kAll = kPanelWidth / kPanelLanes;
  constexpr size_t kFit = kRows == 1 ? 8 : kRows == 2 ? kRegisters / 2 : kRegisters / 4;
  constexpr size_t kVectors = kFit < kAll ? kFit : kAll;
  for (size_t v = 0; v < kAll; v += kVectors) {
    with_ahead(first_read && v == 0, [&]<Ahead kAhead>() HWY_ATTR {
      tile<kAhead, kRows, kVectors>(x, x_stride, w + v * kPanelLanes, n, sums + v * kPanelLanes);
    });
  }
}

template <class T>
inline constexpr size_t kInputsPerElement = 1;
template <>
inline constexpr size_t kInputsPerElement<uint32_t> = 2;

// sums[r, 0..64) += x[r, 0..n_in) * w
template <class T>
void add_inputs(const float* x, size_t x_stride, size_t n_rows, const T* w, size_t n_in,
                float* HWY_RESTRICT sums) {
  for (size_t begin = 0; begin < n_in; begin += kChunk) {
    const size_t n = n_in - begin < kChunk ? n_in - begin : kChunk;
    const T* chunk = w + begin * kPanelWidth / kInputsPerElement<T>;
    for (size_t r = 0; r < n_rows; r += kTileRows) {
      const float* from = x + r * x_stride + begin;
      float* to = sums + r * kPanelWidth;
      switch (std::min(n_rows - r, kTileRows)) {
        case 1:
          rows_tile<1>(from, x_stride, chunk, n, r == 0, to);
          break;
        case 2:
          rows_tile<2>(from, x_stride, chunk, n, r == 0, to);
          break;
        case 3:
          rows_tile<3>(from, x_stride, chunk, n, r == 0, to);
          break;
        case 4:
          rows_tile<4>(from, x_stride, chunk, n, r == 0, to);
          break;
        case 5:
          if constexpr (kTileRows > 4) rows_tile<5>(from, x_stride, chunk, n, r == 0, to);
          break;
        default:
          rows_tile<kTileRows>(from, x_stride, chunk, n, r == 0, to);
      }
    }
  }
}

// One block of inputs: sums = x w.
template <class T>
void block_product(const float* x, size_t x_stride, size_t n_rows, const T* w, size_t n_in,
                   float* HWY_RESTRICT sums) {
  for (size_t i = 0; i < n_rows * kPanelWidth; ++i) sums[i] = 0.0f;
  if constexpr (kInputsPerElement<T> == 2) {
    const FlushSubnormals flush;
    add_inputs(x, x_stride, n_rows, w, n_in, sums);
  } else {
    add_inputs(x, x_stride, n_rows, w, n_in, sums);
  }
}

template <class T>
void product(const float* x, size_t x_stride, size_t n_rows, const T* w, size_t n_in, size_t block,
             size_t n_cols, bool accumulate, float* y, size_t y_stride) {
  HWY_ALIGN float total[kPanelProductRows * kPanelWidth];
  HWY_ALIGN float sums[kPanelProductRows * kPanelWidth];
  for (size_t begin = 0; begin < n_in; begin += block) {
    const size_t n = n_in - begin < block ? n_in - begin : block;
    block_product(x + begin, x_stride, n_rows, w + begin * kPanelWidth / kInputsPerElement<T>, n,
                  begin == 0 ? total : sums);
    for (size_t i = 0; begin != 0 && i < n_rows * kPanelWidth; ++i) total[i] += sums[i];
  }
  for (size_t r = 0; r < n_rows; ++r) {
    for (size_t j = 0; j < n_cols; ++j) {
      const float sum = total[r * kPanelWidth + j];
      float& to = y[r * y_stride + j];
      to = accumulate ? to + sum : sum;
    }
  }
}

void panel_product(PanelType type, const float* x, size_t x_stride, size_t n_rows, const void* w,
                   size_t n_in, size_t block, size_t n_cols, bool accumulate, float* y,
                   size_t y_stride) {
  const auto of = [&](const auto* weights) {
    product(x, x_stride, n_rows, weights, n_in, block, n_cols, accumulate, y, y_stride);
  };
  switch (type) {
    case PanelType::kF32:
      return of(static_cast<const float*>(w));
    case PanelType::kF16:
      return of(static_cast<const hwy::float16_t*>(w));
    case PanelType::kBF16:
      return of(static_cast<const hwy::bfloat16_t*>(w));
    case PanelType::kBF16Pairs:
      return of(static_cast<const uint32_t*>(w));
  }
}

}  // namespace
}  // namespace kvasir::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::kernels {

HWY_EXPORT(panel_product);

void panel_product(PanelType type, const float* x, size_t x_stride, size_t n_rows, const void* w,
                   size_t n_in, size_t block, size_t n_cols, bool accumulate, float* y,
                   size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(panel_product)
  (type, x, x_stride, n_rows, w, n_in, block, n_cols, accumulate, y, y_stride);
}

}  // namespace kvasir::kernels
#endif  // HWY_ONCE
