// Products of many rows with panels in bf16, in the order in which the tiles of AMX are fastest.
//
// A core multiplies in tiles faster than its third-level cache feeds it: what a task reads must
// stay in the second level. So inputs are taken in chunks of 512, x lies chunk by chunk, and a task
// goes through a chunk with four panels before it takes the next one: 512 KiB of x, 256 KiB of
// weights and 512 KiB of sums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/layers/onednn.h"
#include "core/platform/memory.h"

namespace kvasir {

struct PanelMatrix;

// Thread-safe where workers differ.
class TileProducts {
 public:
  // Inputs of a chunk; of quantised weights whole blocks. Rows and panels of a task, at most.
  static constexpr uint32_t kChunkInputs = 512, kTaskRows = 512, kTaskPanels = 4;

  // OneDnnProducts::supported(Compute::kBF16) must hold.
  explicit TileProducts(uint32_t n_workers);

  // Rows [begin, end) of x [n, n_in], rounded to bf16, into `out`: chunk by chunk, each [n, inputs
  // of the chunk].
  static void round(const float* x, uint64_t begin, uint64_t end, uint32_t n, uint32_t n_in,
                    uint16_t* out);

  // Of x as round() leaves it.
  struct Rows {
    const uint16_t* x;
    uint32_t n, n_in;       // of all of x
    uint32_t first, count;  // of the task
  };
  // y = x w, plus what y held when `accumulate`, of panels [first_panel, first_panel + n_panels),
  // at most kTaskPanels, and the rows of the task: [rows.count, columns of the panels], rows
  // y_stride apart. w is in bf16 pairs, or quantised.
  void multiply(const Rows& rows, const PanelMatrix& w, uint32_t first_panel, uint32_t n_panels,
                bool accumulate, float* y, size_t y_stride, uint32_t worker);

 private:
  struct Scratch {
    Region weights;  // bf16: a chunk of a quantised panel, expanded
    Region sums;     // f32 [n_panels, rows of the task, 64]
  };
  OneDnnProducts onednn_;
  std::vector<Scratch> scratch_;  // [n_workers]
};

}  // namespace kvasir
