// Tiles of Q, K and V as panels in shared memory, who brings and who multiplies them, and their
// products by 128 threads: those of prefill_tile.h with the instructions of Hopper.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/panel_product.h"
#include "kernels/cuda/prefill_tile.h"

namespace kvasir::cuda {

// kType: f16 or bf16. kWidth: head_dim and v_dim, 64 or 128.
template <KvType kType, uint32_t kWidth>
struct PanelShape {
  static constexpr KvType kProduct = kType;
  static constexpr uint32_t kDim = kWidth, kKeys = 128, kRows = 128;
  static constexpr bool kIsHalf = true;
  using Element = uint16_t;
  // 64 rows of each product's 128 threads; behind them those that bring K and V.
  static constexpr uint32_t kMultiplying = kRows / kPanelWidth * kThreads;
  static constexpr uint32_t kBlockThreads = kMultiplying + kThreads;
  static constexpr uint32_t kStages = 2;  // of K and of V, each brought by a warp of its own
  static constexpr uint32_t kListWarps = kKeys / kWarpLanes;
  static constexpr uint32_t kTileElements = kKeys * kDim, kQueryElements = kRows * kDim;
  static_assert(kDim % kPanelWidth == 0 && 2 * kStages == kWarps);

  // Elements 0 to 63 of all rows, panel below panel, then 64 to 127.
  static_assert(kKeys == kRows);
  KVASIR_DEVICE static uint32_t place(uint32_t row, uint32_t d) {
    return d / kPanelWidth * kRows * kPanelWidth + panel_place(row, d % kPanelWidth);
  }
};

template <class S, bool kAdds>
KVASIR_DEVICE void multiply_query_columns(Shared<const uint16_t> q, Shared<const uint16_t> k,
                                          float (&x)[S::kKeys / 8][4]) {
  if constexpr (S::kProduct == KvType::kF16) {
    multiply_rows_f16<kAdds>(x, q, k);
  } else {
    multiply_rows_bf16<kAdds>(x, q, k);
  }
}

// x = the warp's rows of Q times the tile's keys. q: of the 128 threads' rows.
template <class S>
KVASIR_DEVICE void start_query_products(Shared<const uint16_t> q, Shared<const uint16_t> k,
                                        float (&x)[S::kKeys / 8][4]) {
  static_assert(S::kKeys == 2 * kPanelWidth);
  begin_products(x);
  multiply_query_columns<S, false>(q, k, x);
  KVASIR_UNROLL
  for (uint32_t d = 16; d < S::kDim; d += 16) {
    const uint32_t at = S::place(0, d / kPanelWidth * kPanelWidth) + d % kPanelWidth;
    multiply_query_columns<S, true>(q + at, k + at, x);
  }
  commit_products();
}

// Registers of D are those of A.
template <class S>
KVASIR_DEVICE void pack_weights(const float (&x)[S::kKeys / 8][4],
                                uint32_t (&weights)[S::kKeys / 16][4]) {
  constexpr bool kIsF16 = S::kProduct == KvType::kF16;
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const float(&of)[4] = x[2 * n + i / 2];
      const float low = of[i % 2 * 2], high = of[i % 2 * 2 + 1];
      weights[n][i] = kIsF16 ? pack_f16(low, high) : pack_bf16(low, high);
    }
  }
}

template <class S, uint32_t kFirst>
KVASIR_DEVICE void multiply_value_panel(float (&o)[S::kDim / 8][4], const uint32_t (&weights)[4],
                                        Shared<const uint16_t> v) {
  if constexpr (S::kProduct == KvType::kF16) {
    multiply_columns_f16<kFirst>(o, weights, v);
  } else {
    multiply_columns_bf16<kFirst>(o, weights, v);
  }
}

// o[n] += weights times elements 8 n to 8 n + 7 of the keys' values.
template <class S>
KVASIR_DEVICE void start_value_products(uint32_t (&weights)[S::kKeys / 16][4],
                                        Shared<const uint16_t> v, float (&o)[S::kDim / 8][4]) {
  begin_products(o, weights);
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
    const Shared<const uint16_t> rows = v + 16 * n * kPanelWidth;
    multiply_value_panel<S, 0>(o, weights[n], rows);
    if constexpr (S::kDim > kPanelWidth)
      multiply_value_panel<S, 8>(o, weights[n], rows + S::place(0, kPanelWidth));
  }
  commit_products();
}

}  // namespace kvasir::cuda
