// Merges the partial results of attention on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// o and lse of every pair of the call, from the partial results of its spans in their order. A pair
// of which no unit saw a key gets (0, -inf); pairs that the call does not name are left as they
// are. Launch: one block of 256 threads per pair and query head, of which each warp
// takes every eighth unit of each span; warps are summed in their order. Queued in the stream.
void attention_merge(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
