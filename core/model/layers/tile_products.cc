// See tile_products.h. `kvasir bench weights --rows 512` on two cores of an Intel Xeon with AMX, in
// billions of multiply-adds per second: Q8_0 775, Q4_0 805, bf16 806; without chunks and with rows
// that straddle cache lines 703, 615 and 638.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/tile_products.h"

#include <algorithm>
#include <cstring>

#include "core/model/layers/panel_matrix.h"
#include "kernels/convert.h"
#include "kernels/quantized_expand.h"
#include "kernels/row_ops.h"

namespace kvasir {
namespace {

constexpr uint32_t kPanel = kernels::kPanelWidth;

}  // namespace

// Regions are aligned: a row of a tile that straddles cache lines takes twice as long.
TileProducts::TileProducts(uint32_t n_workers) : onednn_(Compute::kBF16, n_workers) {
  for (uint32_t i = 0; i < n_workers; ++i)
    scratch_.push_back({Region(size_t{kChunkInputs} * kPanel * sizeof(uint16_t)),
                        Region(size_t{kTaskPanels} * kTaskRows * kPanel * sizeof(float))});
}

void TileProducts::round(const float* x, uint64_t begin, uint64_t end, uint32_t n, uint32_t n_in,
                         uint16_t* out) {
  for (uint32_t from = 0; from < n_in; from += kChunkInputs) {
    const uint32_t inputs = std::min(kChunkInputs, n_in - from);
    uint16_t* chunk = out + size_t{from} * n;
    for (uint64_t r = begin; r < end; ++r)
      kernels::convert_from_f32(kernels::ElementType::kBF16, x + r * n_in + from,
                                chunk + r * inputs, inputs);
  }
}

void TileProducts::multiply(const Rows& rows, const PanelMatrix& w, uint32_t first_panel,
                            uint32_t n_panels, bool accumulate, float* y, size_t y_stride,
                            uint32_t worker) {
  uint16_t* const weights = scratch_[worker].weights.as<uint16_t>().data();
  float* const sums = scratch_[worker].sums.as<float>().data();
  const size_t panel_sums = size_t{rows.count} * kPanel;
  for (uint32_t from = 0; from < rows.n_in; from += kChunkInputs) {
    const uint32_t inputs = std::min(kChunkInputs, rows.n_in - from);
    const uint16_t* x = rows.x + size_t{from} * rows.n + size_t{rows.first} * inputs;
    for (uint32_t p = 0; p < n_panels; ++p) {
      const std::byte* panel = w.data + (first_panel + p) * w.panel_bytes();
      const void* chunk = panel + size_t{from} * kPanel * sizeof(uint16_t);
      if (w.type == Compute::kInt8) {
        kernels::expand_quantized_panel(w.quantized,
                                        panel + kernels::quantized_panel_bytes(w.quantized, from),
                                        inputs, weights);
        chunk = weights;
      }
      onednn_.sum_up(rows.count, inputs, x, chunk, from != 0, sums + p * panel_sums, worker);
    }
  }
  for (uint32_t r = 0; r < rows.count; ++r) {
    float* to = y + r * y_stride;
    for (uint32_t p = 0; p < n_panels; ++p, to += kPanel) {
      const float* of_row = sums + p * panel_sums + size_t{r} * kPanel;
      const uint32_t cols = w.panel_cols(first_panel + p);
      if (accumulate)
        kernels::add_to(of_row, cols, to);
      else
        std::memcpy(to, of_row, cols * sizeof(float));
    }
  }
}

}  // namespace kvasir
