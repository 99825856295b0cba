// See lost_keys.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/lost_keys.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/runtime/blocks/element_type.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "core/runtime/step/finite.h"
#include "kernels/convert.h"

namespace kvasir {
namespace {

class Finder {
 public:
  Finder(const RunContext& context, const Part& part)
      : c_(context), row_(std::max(context.geometry.head_dim, context.geometry.v_dim)) {
    if (part.in_window && !context.prompts_by_window)  // formats as its backend counts them
      first_format_ = context.store.first_window_format();
  }

  std::string find(const kvasir_lease& lease, uint32_t token, uint32_t kv_head) {
    const kvasir_kv_format& f = c_.geometry.formats[first_format_ + lease.format];
    if (!is_host_memory(f.mem_kind) || !lease.k || !lease.v) return "";
    const uint64_t head = lease.kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
    const auto at = [&](void* base, uint64_t head_stride, uint64_t token_stride) {
      return static_cast<const std::byte*>(base) + head * head_stride + token * token_stride;
    };
    const char* lost = nullptr;
    if (!is_finite(f.dtype_k, at(lease.k, f.k_head_stride, f.k_token_stride), c_.geometry.head_dim))
      lost = "K";
    else if (!is_finite(f.dtype_v, at(lease.v, f.v_head_stride, f.v_token_stride),
                        c_.geometry.v_dim))
      lost = "V";
    if (!lost) return "";
    return std::string(lost) + " of token " + std::to_string(position_in(lease, token)) +
           ", kv head " + std::to_string(kv_head);
  }

 private:
  bool is_finite(uint32_t dtype, const std::byte* row, uint32_t n) {
    kernels::convert_to_f32(element_type(dtype), row, row_.data(), n);
    return all_finite(row_.data(), n);
  }

  const RunContext& c_;
  std::vector<float> row_;
  uint32_t first_format_ = 0;
};

}  // namespace

std::string find_lost_key(const RunContext& context, const Part& part) {
  Finder finder(context, part);
  const uint32_t block_size = context.geometry.block_size;
  for (const kvasir_attn_range& range : part.ranges)
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = part.item(i);
      const kvasir_lease& lease = part.abi.leases[part.in_blocks() ? item : item / block_size];
      const uint32_t first = part.in_blocks() ? 0 : item % block_size;
      const uint32_t end = part.in_blocks() ? lease.n_tokens : first + 1;
      for (uint32_t token = first; token < end; ++token)
        if (std::string lost = finder.find(lease, token, range.kv_head); !lost.empty()) return lost;
    }
  return "";
}

}  // namespace kvasir
