// See attention_prefill_panels.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_prefill_panels.h"

#include "kernels/cuda/prefill_panel_kernel.h"

namespace kvasir::cuda {
namespace {

template <KvType kProduct>
void launch_product(const AttentionCall& call, Stream stream) {
  if (call.shape.head_dim == 64) return launch_panels<PanelShape<kProduct, 64>>(call, stream);
  launch_panels<PanelShape<kProduct, 128>>(call, stream);
}

}  // namespace

bool multiplies_panels(const AttentionCall& call) {
  const uint32_t dim = call.shape.head_dim;
  return call.prefill_product != KvType::kF32 && (dim == 64 || dim == 128) &&
         call.shape.v_dim == dim;
}

void attention_prefill_panels(const AttentionCall& call, Stream stream) {
  if (call.prefill_product == KvType::kF16) return launch_product<KvType::kF16>(call, stream);
  launch_product<KvType::kBF16>(call, stream);
}

}  // namespace kvasir::cuda
