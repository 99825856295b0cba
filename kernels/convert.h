// Conversion of rows between f32 and the stored element types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "kernels/element_type.h"

namespace kvasir::kernels {

// out[i] = in[i] rounded to the type: to nearest, ties to even; beyond the largest finite value to
// infinity; f16 subnormals are kept, NaN stays a (quiet) NaN.
//   in [n] f32, out [n] of `type`; must not overlap
void convert_from_f32(ElementType type, const float* in, void* out, size_t n);

// out[i] = in[i], exactly.   in [n] of `type`, out [n] f32; must not overlap
void convert_to_f32(ElementType type, const void* in, float* out, size_t n);

}  // namespace kvasir::kernels
