// Quantised tensors of a GGUF into the panels of kernels/quantized_panel.h: the same numbers, laid
// out for products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/model/gguf/ggml_type.h"
#include "kernels/quantized_panel.h"

namespace kvasir {

// The panel type whose products read blocks of `type` as they are, if there is one.
std::optional<kernels::QuantizedType> quantized_type(GgmlType type);

// Packs n_rows (at most 64) rows of n_in elements, each row_bytes after the one before, into one
// panel, whose other outputs become zero. n_in is a multiple of the type's block.
//   rows   blocks of the GGUF type, at any address
//   panel  [quantized_panel_bytes(type, n_in)], written
void pack_quantized_panel(kernels::QuantizedType type, const std::byte* rows, size_t row_bytes,
                          uint32_t n_rows, uint32_t n_in, std::byte* panel);

}  // namespace kvasir
