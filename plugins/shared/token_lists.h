// From spans and copies of the ABI to the lists that the kernels read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/plugin.h>

#include <vector>

#include "kernels/cuda/token_rows.h"
#include "plugins/shared/kv_layout.h"

namespace kvasir::sdk {

class TokenLists {
 public:
  TokenLists(const kvasir_geometry& geometry, const KvLayout& layout);

  uint32_t n_kv_heads() const { return n_kv_heads_; }
  uint32_t head_dim() const { return head_dim_; }
  uint32_t v_dim() const { return v_dim_; }

  // Tokens of all spans.
  uint64_t n_tokens(const TokenSpans& spans) const;
  // Bytes that save_tokens() makes of them.
  uint64_t saved_bytes(const TokenSpans& spans) const;

  // Rows of every span; `at` counts f32 rows [token of all spans][kv head]. Throws Error for
  // a span beyond its block; whether a lease is on the device is the caller's to check.
  void written(const TokenSpans& spans, std::vector<cuda::TokenRow>& out) const;
  // `at` is the offset in what save_tokens() makes: [span][kv head][token], K before V.
  void saved(const TokenSpans& spans, std::vector<cuda::TokenRow>& out) const;
  void moved(const TokenCopies& copies, std::vector<cuda::TokenMove>& out) const;

  // But for the addresses of lists.
  cuda::TokenRows rows(uint64_t n_rows) const;
  cuda::TokenMoves moves(uint64_t n_moves) const;

 private:
  cuda::TokenRow row(const kvasir_lease& lease, uint32_t head, uint32_t token, uint64_t at) const;
  void check_span(const kvasir_lease& lease, uint64_t first, uint64_t n) const;
  uint32_t n_heads_of(const kvasir_lease& lease) const {
    return lease.kv_head == KVASIR_ALL_HEADS ? n_kv_heads_ : 1;
  }

  uint32_t n_kv_heads_, head_dim_, v_dim_, block_size_;
  kvasir_kv_format format_;
};

}  // namespace kvasir::sdk
