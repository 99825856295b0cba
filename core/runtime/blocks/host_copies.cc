// See host_copies.h, and BlockStore::copy_to_host().
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/host_copies.h"

#include <algorithm>

#include "core/plugin/dtypes.h"
#include "core/runtime/blocks/block_store.h"

namespace kvasir {
namespace {

constexpr uint64_t kAlign = 64;  // bytes; what plugins may expect of K and of V

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct Extent {  // of a block, in bytes
  uint64_t k, v;
};

Extent extent_of(const kvasir_kv_format& format, const BlockAccess& access, uint64_t n_heads) {
  const auto reach = [&](uint64_t head_stride, uint64_t token_stride, uint64_t row) {
    return (n_heads - 1) * head_stride + (access.block_size - 1) * token_stride + row;
  };
  return {aligned(reach(format.k_head_stride, format.k_token_stride, access.k_bytes(format))),
          aligned(reach(format.v_head_stride, format.v_token_stride, access.v_bytes(format)))};
}

}  // namespace

std::vector<kvasir_kv_format> copied_formats(std::span<const kvasir_kv_format> formats,
                                             uint32_t block_size, uint32_t head_dim,
                                             uint32_t v_dim) {
  std::vector<kvasir_kv_format> out(formats.begin(), formats.end());
  for (kvasir_kv_format& format : out) {
    if (is_host_memory(format.mem_kind)) continue;
    format.mem_kind = KVASIR_MEM_HOST;
    format.device = 0;
    format.k_token_stride = row_bytes(format.dtype_k, head_dim);
    format.v_token_stride = row_bytes(format.dtype_v, v_dim);
    format.k_head_stride = block_size * format.k_token_stride;
    format.v_head_stride = block_size * format.v_token_stride;
  }
  return out;
}

std::vector<kvasir_lease> BlockStore::copy_to_host(std::span<const kvasir_token_span> tokens,
                                                   std::unique_ptr<std::byte[]>& memory) const {
  const bool to_first = window_ && is_host_memory(access_.formats[0].mem_kind);
  std::vector<kvasir_lease> copies;
  std::vector<Extent> extents;
  uint64_t n_bytes = 0;
  for (const kvasir_token_span& span : tokens) {
    kvasir_lease& copy = copies.emplace_back(*span.lease);
    if (to_first) copy.format = 0;
    extents.push_back(span.n_tokens == 0
                          ? Extent{0, 0}
                          : extent_of(copies_.format_of(copy), copies_, copies_.heads_of(copy)));
    n_bytes += extents.back().k + extents.back().v;
  }
  memory = std::make_unique_for_overwrite<std::byte[]>(n_bytes + kAlign);
  auto* at = memory.get();
  at += aligned(reinterpret_cast<uintptr_t>(at)) - reinterpret_cast<uintptr_t>(at);
  for (size_t i = 0; i < copies.size(); ++i) {
    const bool is_empty = tokens[i].n_tokens == 0;
    copies[i].k = is_empty ? nullptr : at;
    copies[i].v = is_empty ? nullptr : at + extents[i].k;
    at += extents[i].k + extents[i].v;
  }
  const TokenBytes target(copies_);
  for (const BlockStore* store : {this, static_cast<const BlockStore*>(window_)}) {
    std::vector<kvasir_token_span> from;
    std::vector<kvasir_lease> to;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].n_tokens == 0 || &holder(*tokens[i].lease) != store) continue;
      from.push_back(tokens[i]);
      to.push_back(copies[i]);
    }
    if (store) bring_over(store->bytes_, from, target, to);
  }
  return copies;
}

}  // namespace kvasir
