// See tile_products.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/tile_products.h"

#include <array>

#include "core/model/layers/panel_matrix.h"

namespace kvasir {
namespace {

using kernels::kTiledInputs;

size_t piece_bytes(const PanelMatrix& w, size_t inputs) {
  return w.type == Compute::kInt8 ? kernels::quantized_panel_bytes(w.quantized, inputs)
                                  : inputs * kPanel * sizeof(uint16_t);
}

const std::byte* piece(const TileProducts::Panel& panel, size_t chunk) {
  return panel.w->data + panel.index * panel.w->panel_bytes() +
         piece_bytes(*panel.w, chunk * kTiledInputs);
}

}  // namespace

// Regions are aligned: a row of a tile that straddles cache lines takes twice as long.
TileProducts::TileProducts(uint32_t n_workers) {
  for (uint32_t i = 0; i < n_workers; ++i)
    scratch_.push_back({Region(kernels::kTiledInputs * kPanel * sizeof(uint16_t)),
                        Region(size_t{kTaskPanels} * kTaskRows * kPanel * sizeof(float))});
}

void TileProducts::multiply(const Rows& rows, std::span<const Panel> panels, uint32_t worker) {
  auto* const weights = scratch_[worker].weights.as<uint16_t>().data();
  float* const sums = scratch_[worker].sums.as<float>().data();
  const kernels::TiledRows& layout = rows.layout;
  const size_t panel_sums = kernels::tiled_rows(rows.count, 0).n * kPanel;
  const size_t n_chunks = (layout.n_in + kTiledInputs - 1) / kTiledInputs;
  const auto x = [&](size_t chunk) { return rows.x + layout.offset(chunk, rows.first); };
  for (size_t chunk = 0; chunk < n_chunks; ++chunk) {
    const bool last = chunk + 1 == n_chunks;
    const size_t inputs = layout.inputs_of(chunk), next = last ? 0 : chunk + 1;
    const size_t share = rows.count * layout.inputs_of(next) * sizeof(uint16_t) / panels.size();
    for (size_t p = 0; p < panels.size(); ++p) {
      const auto& [w, index, out] = panels[p];
      if (w->type == Compute::kInt8)
        kernels::tile_quantized_panel(w->quantized, piece(panels[p], chunk), inputs, weights);
      else
        kernels::tile_panel(piece(panels[p], chunk), inputs, weights);
      // The next chunk of x, a share beside each panel, and the next piece of weights.
      const bool same_chunk = p + 1 < panels.size();
      const Panel& then = panels[same_chunk ? p + 1 : 0];
      const size_t of_then = same_chunk ? chunk : next;
      const std::array<kernels::ReadSoon, 2> ahead = {
          {{piece(then, of_then), piece_bytes(*then.w, layout.inputs_of(of_then))},
           {reinterpret_cast<const std::byte*>(x(next)) + p * share, share}}};
      kernels::multiply_tiled_rows(x(chunk), rows.count, inputs, weights, chunk != 0,
                                   sums + p * panel_sums, last ? &out : nullptr, ahead);
    }
  }
}

}  // namespace kvasir
