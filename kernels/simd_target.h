// The one place where the SIMD target of every kernel is pinned; otherwise the best one runs. What
// Highway has no target for, the tiles of AMX, is asked for here, too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvasir::kernels {

// "avx2", "avx512" or "best", which alone has tiles. False, changing nothing, for another name or
// when this CPU lacks the target. Call before kernels run, not while they do: the choice is one per
// process.
bool set_simd_target(std::string_view name);

// The target that the next kernel call uses, in Highway's words: "AVX3", "AVX2", "SSE4", ...
const char* simd_target_name();

// Whether this CPU has AMX tiles and Linux lets this process use them, which the first call asks
// for.
bool has_tiles();

// Whether kernels may multiply bf16 in tiles: has_tiles(), this CPU knows bf16 there, and the best
// target is in use.
bool uses_bf16_tiles();

// Whether products of bf16 take less time than those of f32, where this CPU has them: not on
// Intel's with AVX512-FP16 whose tiles are not used, as a virtual machine may hide them. Since
// Sapphire Rapids these make one dot product of pairs (AVX512-BF16) in two cycles, which is half of
// the multiply-adds that they make in f32.
bool bf16_is_faster();

}  // namespace kvasir::kernels
