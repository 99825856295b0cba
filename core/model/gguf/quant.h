// Elements of a tensor in its own type to f32 and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/model/gguf/ggml_type.h"

namespace kvasir {

// n elements (a multiple of block_elements) of `type` at `src` to f32.
void dequantize(GgmlType type, const void* src, float* dst, size_t n);

// What messages call the elements given to quantize().
struct ElementsOf {
  std::string_view tensor = {};
  uint64_t first = 0;  // index of the first in the tensor
};
// The inverse of dequantize(), as near as `type` allows: all types that are read but Q2_K and Q3_K.
// Each block depends on its own elements only. Error(kInput), naming tensor and element: a number
// is not finite, or larger than the type holds (65504 in F16 and in blocks, whose scale is one).
void quantize(GgmlType type, const float* src, void* dst, size_t n, const ElementsOf& from = {});
bool is_written(GgmlType type);  // whether quantize() knows it

}  // namespace kvasir
