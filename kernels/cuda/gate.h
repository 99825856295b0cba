// The activations of gates, for kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/cuda/device.h"
#include "kernels/cuda/gate_kind.h"

namespace kvasir::cuda {

KVASIR_DEVICE float activate(GateKind kind, float g) {
  if (kind == GateKind::kSilu) return g / (1.0f + expf(-g));
  constexpr float kRootOf2OverPi = 0.7978845608028654f;
  return 0.5f * g * (1.0f + tanhf(kRootOf2OverPi * (g + 0.044715f * g * g * g)));
}

}  // namespace kvasir::cuda
