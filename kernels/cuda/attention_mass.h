// Attention mass on the device: how much of the softmax each key received.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/attention_call.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::cuda {

// value[key, column] = sum over the range's queries of exp(logit - lse), and over the query heads
// of the group where width is 1; else column is the head of the group. Keys of a range are numbered
// from its first_key on, in item order; keys that no query sees get 0. f32 sums, queries in order.
//
// Launch: one block of 128 threads per split of 256 slots. K is read once per query and 8 heads; V
// is not read. Queued in the stream.
void attention_mass(const MassCall& call, Stream stream);

}  // namespace kvasir::cuda
