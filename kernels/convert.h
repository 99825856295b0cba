// Conversion of rows between f32 and the stored element types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "kernels/element_type.h"

namespace kvasir::kernels {

// out[i] = in[i] rounded to the type: to nearest, ties to even; beyond the largest finite value to
// infinity; f16 subnormals are kept, NaN stays a (quiet) NaN. fp8_e4m3: likewise, but beyond 448 to
// 448, for it has no infinity; an infinity becomes NaN. Groups: q8_0 has scale = max |x| / 127 and
// q = x / scale; q4_0 has scale = -x / 8 of the x with the largest |x| (the first of equals) and q
// = x / scale + 8, at most 15; both with the scale as it is stored. A group that holds what is not
// finite, or whose scale binary16 cannot hold, reads back as NaN.
//   in [n] f32, out [n] of `type`, n a multiple of group_elements(type); must not overlap
void convert_from_f32(ElementType type, const float* in, void* out, size_t n);

// out[i] = in[i], exactly; of groups the product of scale and integer, rounded to f32 (it is
// exact).
//   in [n] of `type`, out [n] f32, n a multiple of group_elements(type); must not overlap
void convert_to_f32(ElementType type, const void* in, float* out, size_t n);

}  // namespace kvasir::kernels
