// See token_lists.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/shared/token_lists.h"

#include <string>

#include "plugins/shared/device_buffer.h"
#include "plugins/shared/kv_type.h"

namespace kvasir::sdk {

TokenLists::TokenLists(const kvasir_geometry& geometry, const KvLayout& layout)
    : n_kv_heads_(geometry.n_kv_heads),
      head_dim_(geometry.head_dim),
      v_dim_(geometry.v_dim),
      block_size_(geometry.block_size),
      format_(layout.format) {}

void TokenLists::check_span(const kvasir_lease& lease, uint64_t first, uint64_t n) const {
  if (first + n > block_size_) {
    fail_invalid("tokens " + std::to_string(first) + " to " + std::to_string(first + n) +
                 " of a block of " + std::to_string(block_size_));
  }
  if (!lease.k || !lease.v) fail_invalid("tokens of a block that is not leased");
}

uint64_t TokenLists::n_tokens(const TokenSpans& spans) const {
  uint64_t n = 0;
  for (const kvasir_token_span& span : spans) n += span.n_tokens;
  return n;
}

uint64_t TokenLists::saved_bytes(const TokenSpans& spans) const {
  uint64_t rows = 0;
  for (const kvasir_token_span& span : spans)
    rows += uint64_t{span.n_tokens} * n_heads_of(*span.lease);
  return rows * (format_.k_token_stride + format_.v_token_stride);
}

cuda::TokenRow TokenLists::row(const kvasir_lease& lease, uint32_t head, uint32_t token,
                               uint64_t at) const {
  return {address(lease.k) + head * format_.k_head_stride + token * format_.k_token_stride,
          address(lease.v) + head * format_.v_head_stride + token * format_.v_token_stride, at};
}

void TokenLists::written(const TokenSpans& spans, std::vector<cuda::TokenRow>& out) const {
  out.clear();
  uint64_t token = 0;  // of all spans
  for (const kvasir_token_span& span : spans) {
    const kvasir_lease& lease = *span.lease;
    check_span(lease, span.first_token, span.n_tokens);
    const uint32_t first = lease.kv_head == KVASIR_ALL_HEADS ? 0 : lease.kv_head;
    for (uint32_t t = 0; t < span.n_tokens; ++t, ++token)
      for (uint32_t head = 0; head < n_heads_of(lease); ++head)
        out.push_back(row(lease, head, span.first_token + t, token * n_kv_heads_ + first + head));
  }
}

void TokenLists::saved(const TokenSpans& spans, std::vector<cuda::TokenRow>& out) const {
  out.clear();
  uint64_t at = 0;
  for (const kvasir_token_span& span : spans) {
    check_span(*span.lease, span.first_token, span.n_tokens);
    for (uint32_t head = 0; head < n_heads_of(*span.lease); ++head)
      for (uint32_t t = 0; t < span.n_tokens; ++t) {
        out.push_back(row(*span.lease, head, span.first_token + t, at));
        at += format_.k_token_stride + format_.v_token_stride;
      }
  }
}

void TokenLists::moved(const TokenCopies& copies, std::vector<cuda::TokenMove>& out) const {
  out.clear();
  for (const kvasir_token_copy& copy : copies) {
    check_span(*copy.from, copy.from_token, copy.n_tokens);
    check_span(*copy.to, copy.to_token, copy.n_tokens);
    const bool is_all = copy.kv_head == KVASIR_ALL_HEADS;
    for (const kvasir_lease* lease : {copy.from, copy.to}) {
      const bool fits = lease->kv_head == KVASIR_ALL_HEADS || lease->kv_head == copy.kv_head;
      if (!fits || (!is_all && copy.kv_head >= n_kv_heads_))
        fail_invalid("tokens of a kv head that a lease does not cover are to be copied");
    }
    const cuda::TokenRow from = row(*copy.from, 0, copy.from_token, 0);
    const cuda::TokenRow to = row(*copy.to, 0, copy.to_token, 0);
    out.push_back({from.k, from.v, to.k, to.v, copy.n_tokens, copy.kv_head,
                   copy.from->kv_head != KVASIR_ALL_HEADS, copy.to->kv_head != KVASIR_ALL_HEADS});
  }
}

cuda::TokenRows TokenLists::rows(uint64_t n_rows) const {
  return {0,      static_cast<uint32_t>(n_rows), head_dim_,
          v_dim_, kv_type(format_.dtype_k),      kv_type(format_.dtype_v)};
}

cuda::TokenMoves TokenLists::moves(uint64_t n_moves) const {
  return {0,
          static_cast<uint32_t>(n_moves),
          n_kv_heads_,
          static_cast<uint32_t>(format_.k_token_stride),
          static_cast<uint32_t>(format_.v_token_stride),
          format_.k_head_stride,
          format_.v_head_stride};
}

}  // namespace kvasir::sdk
