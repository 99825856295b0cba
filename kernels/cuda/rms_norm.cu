// See rms_norm.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rms_norm.h"

#include <cmath>

#include "kernels/cuda/launch.h"

namespace kvasir::cuda {
namespace {

constexpr uint32_t kMostWarps = 8, kMostOfWarp = 512;  // elements of a row that one warp takes

// Of `value` over all threads of the block.   totals [kMostWarps]
KVASIR_DEVICE float sum_of_block(float value, Shared<float> totals) {
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2)
    value += shuffle_xor(kAllLanes, value, lanes);
  const uint32_t n_warps = threads_x() / kWarpLanes;
  if (n_warps == 1) return value;
  if (thread_x() % kWarpLanes == 0) totals[thread_x() / kWarpLanes] = value;
  block_sync();
  float sum = 0.0f;
  for (uint32_t warp = 0; warp < n_warps; ++warp) sum += totals[warp];
  return sum;
}

KVASIR_KERNEL void KVASIR_BOUNDS(kMostWarps* kWarpLanes) normalise_row(const RmsNorm n) {
  KVASIR_SHARED(float, totals, kMostWarps);
  const uint64_t row = uint64_t{4} * block_x() * n.width;
  const Global<const float> x = global<const float>(n.x + row);
  const Global<const float> weight = global<const float>(n.weight);
  const Global<float> y = global<float>(n.y + row);
  float sum = 0.0f;
  for (uint32_t i = thread_x(); i < n.width; i += threads_x()) {
    const float value = x[i];
    sum = fmaf(value, value, sum);
  }
  const float all = sum_of_block(sum, totals);
  const float scale = 1.0f / sqrtf(all / static_cast<float>(n.width) + n.eps);
  for (uint32_t i = thread_x(); i < n.width; i += threads_x()) {
    const float value = x[i] * scale * weight[i];
    y[i] = n.adds ? y[i] + value : value;
  }
}

}  // namespace

void rms_norm(const RmsNorm& norm, Stream stream) {
  launch(normalise_row,
         {.blocks_x = static_cast<uint32_t>(norm.n_rows),
          .threads = norm.width <= kMostOfWarp ? kWarpLanes : kMostWarps * kWarpLanes},
         stream, norm);
}

}  // namespace kvasir::cuda
