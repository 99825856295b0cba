// A panel of quantised weights as a panel of bf16, for products that have no scales.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_panel.h"

namespace kvasir::kernels {

// out: a panel of PanelType::kBF16Pairs, [n_in / 2, 64, 2]: each weight, rounded to f32 and then to
// bf16, to nearest, ties to even.
//
//   panel  as quantized_panel.h says, n_in a multiple of inputs_per_head(); must not overlap `out`
void expand_quantized_panel(QuantizedType type, const void* panel, size_t n_in, uint16_t* out);

}  // namespace kvasir::kernels
