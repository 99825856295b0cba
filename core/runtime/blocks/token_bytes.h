// K and V of tokens as the bytes that blocks hold: saved, loaded and copied between leased blocks,
// by the host where it reaches their memory, else by the storage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/runtime/blocks/block_access.h"

namespace kvasir {

// Leases are of blocks of one storage. Saved tokens lie as [kv head][token], K before V of each.
class TokenBytes {
 public:
  // `access` must outlive this.
  explicit TokenBytes(const BlockAccess& access) : access_(access) {}

  // Bytes of tokens [0, n_tokens) of a block.
  uint64_t size(const kvasir_lease& lease, uint32_t n_tokens) const;
  std::vector<std::byte> save(const kvasir_lease& lease, uint32_t n_tokens) const;
  // from: size(lease, n_tokens) bytes.
  void load(const kvasir_lease& lease, uint32_t n_tokens, std::span<const std::byte> from) const;
  // Copies tokens between blocks of equal element types.
  void copy(std::span<const kvasir_token_copy> copies) const;
  // Copies tokens [0, n_tokens) of block `from` of `source` to block `to` of `target`, by way of
  // host memory. Both have the same kv heads. Where the element types differ, values are rounded
  // to the new ones.
  friend void carry_over(const TokenBytes& source, const kvasir_lease& from,
                         const TokenBytes& target, const kvasir_lease& to, uint32_t n_tokens);
  // The same for the tokens of each span, to those places of block to[i] in host memory: one call
  // of the source's storage for some megabytes.
  friend void bring_over(const TokenBytes& source, std::span<const kvasir_token_span> from,
                         const TokenBytes& target, std::span<const kvasir_lease> to);

 private:
  // The spans, one at least, one after another; all of memory that the host reaches, or none.
  void save(std::span<const kvasir_token_span> spans, std::span<std::byte> to) const;
  // To tokens [first, first + n_tokens) of a block in host memory.
  void write(const kvasir_lease& lease, uint32_t first, uint32_t n_tokens,
             std::span<const std::byte> from) const;
  void copy_on_host(const kvasir_token_copy& copy, uint32_t kv_head) const;
  // `bytes` as saved from a block of format `from`, in the element types of `to`.
  std::vector<std::byte> convert(std::span<const std::byte> bytes, const kvasir_kv_format& from,
                                 const kvasir_kv_format& to) const;
  // fn(address, bytes) for K and then V of every kv head and token of a block in host memory.
  template <class Fn>
  void for_tokens(const kvasir_lease& lease, uint32_t first, uint32_t n_tokens, Fn&& fn) const;

  const BlockAccess& access_;
};

void carry_over(const TokenBytes& source, const kvasir_lease& from, const TokenBytes& target,
                const kvasir_lease& to, uint32_t n_tokens);
void bring_over(const TokenBytes& source, std::span<const kvasir_token_span> from,
                const TokenBytes& target, std::span<const kvasir_lease> to);

}  // namespace kvasir
