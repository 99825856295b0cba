// Layers of a run in which plugins choose and keep something.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/instance.h>

#include <cstdint>

namespace kvasir::sdk {

// Attended in full: no selector is asked there, no record is made.
inline bool is_dense_layer(const kvasir_geometry& geometry, uint32_t layer) {
  return geometry.dense_layers && (geometry.dense_layers[layer / 64] >> (layer % 64) & 1) != 0;
}

inline uint32_t n_sparse_layers(const kvasir_geometry& geometry) {
  uint32_t n = 0;
  for (uint32_t layer = 0; layer < geometry.n_layers; ++layer)
    n += !is_dense_layer(geometry, layer);
  return n;
}

}  // namespace kvasir::sdk
