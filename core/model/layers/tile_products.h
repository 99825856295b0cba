// Products of many rows with panels, in the tiles of AMX.
//
// What a task reads must stay in the second cache: it goes through a chunk of 256 inputs with four
// panels before it takes the next one: 256 KiB of x, 512 KiB of sums and 32 KiB of weights. The
// next chunk of x is asked for meanwhile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/platform/memory.h"
#include "kernels/tiled_rows.h"

namespace kvasir {

struct PanelMatrix;

// Thread-safe where workers differ. Where kernels::uses_bf16_tiles().
class TileProducts {
 public:
  // Rows and panels of a task, at most.
  static constexpr uint32_t kTaskRows = 512, kTaskPanels = 4;

  explicit TileProducts(uint32_t n_workers);

  struct Rows {
    const uint16_t* x;          // all rows, as kernels::tile_rows() leaves them
    kernels::TiledRows layout;  // of all rows
    uint32_t first, count;      // of the task; first a multiple of kernels::kTiledRows
  };
  struct Panel {
    const PanelMatrix* w;  // in bf16 pairs, or quantised
    uint32_t index;
    kernels::TiledOutput out;  // [rows.count, columns of the panel]
  };
  // At most kTaskPanels, of matrices with as many inputs as the rows.
  void multiply(const Rows& rows, std::span<const Panel> panels, uint32_t worker);

 private:
  struct Scratch {
    Region weights;  // bf16: a chunk of a panel
    Region sums;     // f32 [panels, 2, rows of the task, 32]
  };
  std::vector<Scratch> scratch_;  // [n_workers]
};

}  // namespace kvasir
