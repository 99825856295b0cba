// The activations of gates in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/cuda/gate_kind.h"

namespace kvasir::test {

inline double activation(cuda::GateKind kind, double g) {
  if (kind == cuda::GateKind::kSilu) return g / (1.0 + std::exp(-g));
  return 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
}

}  // namespace kvasir::test
