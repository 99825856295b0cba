// How fast the products of one dense layer are on this device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::bench {

struct LayerCase {
  uint32_t d_model, d_ff, kv_width;
  uint32_t prompt_tokens;
};

// The seven products of a layer as core/model/cuda makes them, in bf16, q8_0, q4_k, q6_k and q4_0:
// for one, four and eight tokens the bytes of weights that are read, beside `bandwidth` bytes per
// second; for a piece of a prompt operations per second.
void print_layers(const LayerCase& c, double bandwidth, uint32_t n_runs);

}  // namespace kvasir::bench
