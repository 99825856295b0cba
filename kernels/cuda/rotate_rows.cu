// See rotate_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rotate_rows.h"

#include <cmath>

#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kRotateThreads = 256;

KVASIR_KERNEL void KVASIR_BOUNDS(kRotateThreads) rotate_token(const RowRotation r) {
  const uint64_t token = block_x();
  const Global<const float> cos = global<const float>(r.cos + 4 * token * r.n_pairs);
  const Global<const float> sin = global<const float>(r.sin + 4 * token * r.n_pairs);
  const Global<float> x = global<float>(r.x + 4 * token * r.n_heads * r.head_dim);
  for (uint32_t i = thread_x(); i < r.n_heads * r.n_pairs; i += kRotateThreads) {
    const uint32_t pair = i % r.n_pairs, head = i / r.n_pairs * r.head_dim;
    const uint32_t first = head + (r.is_interleaved ? 2 * pair : pair);
    const uint32_t second = first + (r.is_interleaved ? 1 : r.n_pairs);
    const float a = x[first], b = x[second], c = cos[pair], s = sin[pair];
    x[first] = fmaf(-b, s, a * c);
    x[second] = fmaf(a, s, b * c);
  }
}

}  // namespace

void rotate_rows(const RowRotation& rotation, Stream stream) {
  launch(rotate_token, {.blocks_x = rotation.n_tokens, .threads = kRotateThreads}, stream,
         rotation);
}

}  // namespace kvasir::cuda
