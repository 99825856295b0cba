// See row_ops.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/row_ops.h"

#include <cmath>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;

KVASIR_DEVICE uint64_t own_element() { return uint64_t{block_x()} * kRowThreads + thread_x(); }

KVASIR_KERNEL void KVASIR_BOUNDS(kRowThreads)
    gate_element(GateKind kind, uint64_t gate, uint64_t up, uint64_t n) {
  const uint64_t i = own_element();
  if (i >= n) return;
  const Global<float> g = global<float>(gate);
  g[i] = activate(kind, g[i]) * global<const float>(up)[i];
}

KVASIR_KERNEL void KVASIR_BOUNDS(kRowThreads)
    bias_element(uint64_t bias, uint32_t width, uint64_t y, uint64_t n) {
  const uint64_t i = own_element();
  if (i >= n) return;
  global<float>(y)[i] += global<const float>(bias)[i % width];
}

KVASIR_KERNEL void KVASIR_BOUNDS(kRowThreads) cap_element(float cap, uint64_t x, uint64_t n) {
  const uint64_t i = own_element();
  if (i >= n) return;
  const Global<float> values = global<float>(x);
  values[i] = cap * tanhf(values[i] / cap);
}

LaunchShape shape_of(uint64_t n) {
  return {.blocks_x = static_cast<uint32_t>((n + kRowThreads - 1) / kRowThreads),
          .threads = kRowThreads};
}

}  // namespace

void apply_gate(GateKind kind, uint64_t gate, uint64_t up, uint64_t n, Stream stream) {
  launch(gate_element, shape_of(n), stream, kind, gate, up, n);
}
void add_bias(uint64_t bias, uint64_t n_rows, uint32_t width, uint64_t y, Stream stream) {
  const uint64_t n = n_rows * width;
  launch(bias_element, shape_of(n), stream, bias, width, y, n);
}
void cap_values(float cap, uint64_t x, uint64_t n, Stream stream) {
  launch(cap_element, shape_of(n), stream, cap, x, n);
}

}  // namespace kvasir::cuda
