// The one place where the SIMD target of every kernel is pinned; otherwise the best one runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvasir::kernels {

// "avx2", "avx512" or "best". False, changing nothing, for another name or when this CPU lacks the
// target. Call before kernels run, not while they do: the choice is one per process.
bool set_simd_target(std::string_view name);

// The target that the next kernel call uses, in Highway's words: "AVX3", "AVX2", "SSE4", ...
const char* simd_target_name();

}  // namespace kvasir::kernels
