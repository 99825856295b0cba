// See attention_prefill.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_prefill.h"

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_prefill_panels.h"
#include "kernels/cuda/prefill_kernel.h"

namespace kvasir::cuda {
namespace {

template <KvType kProduct>
void launch_product(const AttentionCall& call, Stream stream) {
  const uint32_t head_dim = call.shape.head_dim, v_dim = call.shape.v_dim;
  const uint32_t dim = head_dim > v_dim ? head_dim : v_dim;
  if (dim <= 64) return launch_prefill<PrefillShape<kProduct, 64>>(call, stream);
  if (dim <= 128) return launch_prefill<PrefillShape<kProduct, 128>>(call, stream);
  launch_prefill<PrefillShape<kProduct, 256>>(call, stream);
}

}  // namespace

void attention_prefill(const AttentionCall& call, Stream stream) {
  if (call.n_tiles == 0) return;
  if (call.instructions == Instructions::kHopper && multiplies_panels(call)) {
    attention_prefill_panels(call, stream);
  } else if (call.prefill_product == KvType::kF16) {
    launch_product<KvType::kF16>(call, stream);
  } else if (call.prefill_product == KvType::kBF16) {
    launch_product<KvType::kBF16>(call, stream);
  } else {
    launch_product<KvType::kF32>(call, stream);
  }
  attention_repeat(call, stream);
}

}  // namespace kvasir::cuda
