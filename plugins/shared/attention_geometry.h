// What attention backends check of a call before they follow it: parts, ranges, leases, formats.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/kvasir.h>
#include <kvasir/sdk/error.h>
#include <kvasir/sdk/strided.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::attention {

// What bind() told about the run.
struct Geometry {
  explicit Geometry(const kvasir_geometry& g)
      : n_q_heads(g.n_q_heads),
        n_kv_heads(g.n_kv_heads),
        head_dim(g.head_dim),
        v_dim(g.v_dim),
        block_size(g.block_size),
        softmax_scale(g.softmax_scale),
        softcap(g.softcap) {
    if (n_kv_heads == 0 || n_q_heads == 0 || n_q_heads % n_kv_heads != 0) {
      sdk::fail_invalid(std::to_string(n_q_heads) + " query heads cannot be shared out to " +
                        std::to_string(n_kv_heads) + " kv heads");
    }
    if (head_dim == 0 || v_dim == 0 || block_size == 0) {
      sdk::fail_invalid("head_dim, v_dim and block_size must be positive");
    }
    const sdk::Strided<const kvasir_kv_format> given(g.formats, g.n_formats, g.format_size);
    for (const kvasir_kv_format& format : given) formats.push_back(format);
  }

  uint32_t group_size() const { return n_q_heads / n_kv_heads; }
  // Keys an item stands for at most.
  uint64_t keys_per_item(const kvasir_attn_part& part) const {
    return part.unit == KVASIR_UNIT_BLOCK ? block_size : 1;
  }

  const kvasir_lease& lease(const kvasir_attn_part& part, uint64_t ordinal) const {
    if (ordinal >= part.n_leases) {
      sdk::fail_invalid("an item names lease " + std::to_string(ordinal) + ", the part has " +
                        std::to_string(part.n_leases));
    }
    return sdk::Strided<const kvasir_lease>(part.leases, part.n_leases, part.lease_size)[ordinal];
  }
  // Of a lease that is to be attended.
  const kvasir_kv_format& format(const kvasir_lease& lease) const {
    const bool is_held =
        lease.state == KVASIR_LEASE_RESIDENT || lease.state == KVASIR_LEASE_PARTIAL;
    if (!is_held || !lease.k || !lease.v) {
      sdk::fail_invalid("a lease to be attended is not resident: acquire or prefetch it first");
    }
    if (lease.format >= formats.size()) {
      sdk::fail_invalid("a lease names format " + std::to_string(lease.format) + ", bind() gave " +
                        std::to_string(formats.size()));
    }
    if (lease.n_tokens > block_size) {
      sdk::fail_invalid("a lease of " + std::to_string(lease.n_tokens) + " tokens, block_size is " +
                        std::to_string(block_size));
    }
    return formats[lease.format];
  }
  // Where kv head `kv_head` of a lease begins, in heads.
  uint64_t head_of(const kvasir_lease& lease, uint32_t kv_head) const {
    if (lease.kv_head == KVASIR_ALL_HEADS) return kv_head;
    if (lease.kv_head != kv_head) {
      sdk::fail_invalid("a lease of kv head " + std::to_string(lease.kv_head) +
                        " in a range of kv head " + std::to_string(kv_head));
    }
    return 0;
  }
  // Of an item of token unit, on the lease it names.
  uint32_t token_of(const kvasir_lease& lease, uint64_t item) const {
    const auto token = static_cast<uint32_t>(item % block_size);
    if (token >= lease.n_tokens) {
      sdk::fail_invalid("an item names token " + std::to_string(token) + " of a block that has " +
                        std::to_string(lease.n_tokens));
    }
    return token;
  }

  uint32_t n_q_heads, n_kv_heads, head_dim, v_dim, block_size;
  float softmax_scale, softcap;
  std::vector<kvasir_kv_format> formats;
};

// The parts of a call and the ranges of a part, at the distances the host says.
inline sdk::Strided<const kvasir_attn_part> parts_of(const kvasir_attn_in& in) {
  return {in.parts, in.n_parts, in.part_size};
}
inline sdk::Strided<const kvasir_attn_range> ranges_of(const kvasir_attn_part& part) {
  return {part.ranges, part.n_ranges, part.range_size};
}

inline uint64_t item_value(const kvasir_attn_part& part, uint64_t i) {
  return part.items ? part.items[i] : i;
}
// Exact number of keys of an item, in the order mass() numbers them.
inline uint64_t keys_of_item(const Geometry& geometry, const kvasir_attn_part& part,
                             uint64_t item) {
  if (part.unit == KVASIR_UNIT_TOKEN) return 1;
  return geometry.lease(part, item_value(part, item)).n_tokens;
}

// Throw sdk::Error(INVALID) for what reaches beyond the geometry or the views. The memory of q and
// q_pos is the backend's business.
inline void check_part(const Geometry& g, const kvasir_attn_part& part) {
  const auto head_bytes = static_cast<int64_t>(g.head_dim * sizeof(float));
  const bool shaped = part.q.rank == 3 && part.q.dtype == KVASIR_DTYPE_F32 &&
                      part.q.shape[1] == g.n_q_heads && part.q.shape[2] == g.head_dim &&
                      part.q.stride[1] == head_bytes;
  if (!shaped) {
    sdk::fail_invalid("q must be f32 [queries][n_q_heads][head_dim], heads contiguous");
  }
  if (part.log_weight && part.weight_width > 1 && part.weight_width != g.group_size()) {
    sdk::fail_invalid("weight_width " + std::to_string(part.weight_width) +
                      " is neither 1 nor the group size " + std::to_string(g.group_size()));
  }
  if (!part.items && part.unit != KVASIR_UNIT_BLOCK) {
    sdk::fail_invalid("a part of token unit without items");
  }
}
inline void check_range(const Geometry& g, const kvasir_attn_part& part,
                        const kvasir_attn_range& range) {
  if (range.kv_head >= g.n_kv_heads) {
    sdk::fail_invalid("a range names kv head " + std::to_string(range.kv_head) + " of " +
                      std::to_string(g.n_kv_heads));
  }
  if (range.item_begin > range.item_end || uint64_t{range.q_begin} + range.n_q > part.q.shape[0]) {
    sdk::fail_invalid("a range reaches past the queries of its part, or its items run backwards");
  }
}

}  // namespace kvasir::attention
