// Prefill attention with the products of Hopper.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// Whether the products of prompts may be those of panels: in f16 or bf16, with head_dim and v_dim
// both 64 or both 128.
bool multiplies_panels(const AttentionCall& call);

// What attention_prefill() defines, but for the rows that are computed again: for calls of which
// multiplies_panels(). Launch: one block of 384 threads per tile, of which every second one's takes
// the rows of two, 128, and the others' return. 256 threads multiply panels in shared memory
// (wgmma), 128 together for 64 rows; the other four warps bring K and V there by asynchronous
// copies of 16 bytes, in tiles of 128 keys. Shared memory: 172 KiB. Queued in the stream.
void attention_prefill_panels(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
