// Elements of a tensor in its own type to f32 and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/model/gguf/ggml_type.h"

namespace kvasir {

// n elements (a multiple of block_elements) of `type` at `src` to f32.
void dequantize(GgmlType type, const void* src, float* dst, size_t n);
// The inverse for the types `model random` and the tests write: F32 F16 BF16 Q8_0 Q4_0.
void quantize(GgmlType type, const float* src, void* dst, size_t n);

}  // namespace kvasir
