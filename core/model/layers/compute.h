// The number type that the matrix products of a model are computed in.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir {

enum class Compute { kF32, kBF16 };
bool compute_supported(Compute compute);  // bf16 products can be created on this CPU

}  // namespace kvasir
