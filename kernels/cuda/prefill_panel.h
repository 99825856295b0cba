// Tiles of Q, K and V as panels in shared memory, and their products by all 128 threads: those of
// prefill_tile.h with the instructions of Hopper.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/panel_product.h"
#include "kernels/cuda/prefill_tile.h"

namespace kvasir::cuda {

// kType: f16 or bf16. kWidth: head_dim and v_dim, 64 or 128.
template <KvType kType, uint32_t kWidth>
struct PanelShape {
  static constexpr KvType kProduct = kType;
  static constexpr uint32_t kDim = kWidth, kKeys = kPanelWidth;
  static constexpr bool kIsHalf = true, kIsPanel = true;
  using Element = uint16_t;
  static constexpr uint32_t kAhead = 1, kStages = 2, kLists = 3;  // as in PrefillShape
  static constexpr uint32_t kListWarps = kKeys / kWarpLanes;
  // Panels side by side: elements 0 to 63 of all rows, then 64 to 127.
  static constexpr uint32_t kTileElements = kDim / kPanelWidth * kPanelElements;
  static constexpr uint32_t kQueryElements = kTileElements;
  static_assert(kPrefillRows == kPanelWidth && kDim % kPanelWidth == 0);

  KVASIR_DEVICE static uint32_t place(uint32_t row, uint32_t d) {
    return d / kPanelWidth * kPanelElements + panel_place(row, d % kPanelWidth);
  }
  KVASIR_DEVICE static Shared<Element> take(SharedMemory& shared, uint32_t n) {
    return shared.take_panels(n / kPanelElements);
  }
  static void add(SharedSize& size, uint32_t n) { size.add_panels(n / kPanelElements); }
};

// dots[n] = the warp's rows of Q times keys 8 n to 8 n + 7.
template <class S>
KVASIR_DEVICE void panel_query_products(Shared<const uint16_t> q, Shared<const uint16_t> k,
                                        float (&dots)[S::kKeys / 8][4]) {
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) dots[n][i] = 0.0f;
  }
  begin_products(dots);
  KVASIR_UNROLL
  for (uint32_t d = 0; d < S::kDim; d += 16) {
    const uint32_t at = d / kPanelWidth * kPanelElements + d % kPanelWidth;
    if constexpr (S::kProduct == KvType::kF16) {
      multiply_rows_f16<0>(dots, q + at, k + at);
    } else {
      multiply_rows_bf16<0>(dots, q + at, k + at);
    }
  }
  finish_products(dots);
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

// o[n] += weights times elements 8 n to 8 n + 7 of the keys' values. Registers of D are those of A.
template <class S>
KVASIR_DEVICE void panel_value_products(const float (&weights)[S::kKeys / 8][4],
                                        Shared<const uint16_t> v, float (&o)[S::kDim / 8][4]) {
  constexpr bool kIsF16 = S::kProduct == KvType::kF16;
  const auto pack = [](float x, float y) { return kIsF16 ? pack_f16(x, y) : pack_bf16(x, y); };
  uint32_t a[S::kKeys / 16][4];
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const float(&of)[4] = weights[2 * n + i / 2];
      a[n][i] = pack(of[i % 2 * 2], of[i % 2 * 2 + 1]);
    }
  }
  begin_products(o, a);
  KVASIR_UNROLL
  for (uint32_t n = 0; n < S::kKeys / 16; ++n) {
    const Shared<const uint16_t> rows = v + 16 * n * kPanelWidth;
    multiply_value_panel<S, 0>(o, a[n], rows);
    if constexpr (S::kDim > kPanelWidth) multiply_value_panel<S, 8>(o, a[n], rows + kPanelElements);
  }
  finish_products(o, a);
}

}  // namespace kvasir::cuda
