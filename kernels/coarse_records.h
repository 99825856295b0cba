// Coarse copies of records, 4 bits per element, whose scores bound those of the records from above:
// a first pass that tells from few bytes which records need be read at all to find the best ones.
// Elements are coded between the least and the largest value that they take in the records of one
// copy: keys of one channel lie close together, those of one token do not (KIVI, arXiv:2402.02750).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/representative.h"

namespace kvasir::kernels {

// Bytes of the coarse copy of n records of `width` elements.   n: a multiple of 16
size_t coarse_bytes(size_t n, size_t width);

// Of records.n records, each of `width` elements of records.type. False: an element, or the
// distance of two, is not finite, and the outputs are left in no defined state.
//   coarse: coarse_bytes(records.n, width), 4-byte aligned
//   unit: of its numbers, a power of two, so that f16 holds them
bool make_coarse(const Records& records, size_t width, void* coarse, float* unit);

// Bytes of scratch, 64-byte aligned by the caller.
size_t coarse_scratch_bytes(size_t width);

// bound[b] = a number at or above sum_d weight[d] * record_b[d], also as score_dot() and
// score_min_max() compute it in f32. With element d of the copied records between low_d and
// low_d + 16 step_d, both rounded outwards to f16 in units, and code c_bd the step that record b
// lies in:
//   sum_d weight[d] * (low_d + step_d * (c_bd + 1/2)) + off_b, weights rounded up to 16 bits,
//   off_b = min(sum_d |weight[d] step_d| / 2, distance_b * sqrt(sum_d (weight[d] step_d)^2)):
// the second is Cauchy and Schwarz over a record's Euclidean distance from the middles of its
// steps, in steps, kept in 255ths of the largest that it can have; it is left out where the sum of
// squares is below 1e-28 square units. Not finite only where the weights are not, or where a sum
// overflows. next: a copy that is looked at soon, or null: it is asked for.
//   weight [width]; bound [n] written, n as of make_coarse()
void bound_coarse(const float* weight, size_t width, const void* coarse, float unit,
                  const void* next, size_t n, float* bound, void* scratch);

}  // namespace kvasir::kernels
