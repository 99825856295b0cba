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
// multiplies_panels(). The launch is that of attention_prefill(), with tiles of 64 keys; the four
// warps make each product together, from panels in shared memory (wgmma), into which K and V come
// by asynchronous copies of 16 bytes. Shared memory: 89 KiB. Queued in the stream.
void attention_prefill_panels(const AttentionCall& call, Stream stream);

}  // namespace kvasir::cuda
