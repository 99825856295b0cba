// The arithmetic of a model's matrix products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir {

// kF32: weights as f32, exactly the numbers of the file. kBF16: weights and rows rounded to bf16,
// sums in f32. kInt8: quantised weights as they lie, times rows rounded to 8 bits per 32 inputs
// (kernels/quantized_product.h), to 16 bits for the projection of values and the head; what is not
// quantised is multiplied in plain_compute().
enum class Compute { kF32, kBF16, kInt8 };
const char* name(Compute compute);        // "f32", "bf16", "int8"
bool compute_supported(Compute compute);  // on this CPU
Compute plain_compute();                  // bf16 where this CPU has it and gains by it, else f32

}  // namespace kvasir
