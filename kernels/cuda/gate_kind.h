// Which activation a gated feed-forward network has.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvasir::cuda {

enum class GateKind : uint32_t {
  kSilu,  // g / (1 + exp(-g)); arXiv:2002.05202
  kGelu,  // g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2; arXiv:1606.08415
};

}  // namespace kvasir::cuda
