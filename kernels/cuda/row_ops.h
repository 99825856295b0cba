// Elementwise pieces of a transformer layer on rows: gated activations, biases, the cap of logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/gate_kind.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// All arrays f32 and contiguous. Launch: a thread per element, blocks of 256. Bound by memory.
// Queued in the stream.

// gate[i] = act(gate[i]) * up[i], i < n
void apply_gate(GateKind kind, uint64_t gate, uint64_t up, uint64_t n, Stream stream);
// y[r, i] += bias[i]   bias [width], y [n_rows, width]
void add_bias(uint64_t bias, uint64_t n_rows, uint32_t width, uint64_t y, Stream stream);
// x[i] = cap tanh(x[i] / cap), i < n
void cap_values(float cap, uint64_t x, uint64_t n, Stream stream);

}  // namespace kvasir::cuda
