// A block of K and V as a file of a store: a header that says what it is, its bytes, and a checksum
// of both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "plugins/shared/kv_layout.h"

namespace kvasir::tiered {

using Hash = std::array<uint64_t, 2>;

// Which block it is. `block` is its place in the sequence: blocks behind it are of no use without
// it, so they go first.
struct StoreName {
  Hash run{};   // of what K and V depend on besides tokens
  Hash name{};  // of the tokens up to the block's end
  uint32_t block = 0, layer = 0;
  bool operator==(const StoreName&) const = default;
};

// How all blocks of a run lie in memory, and so in the file.
struct StoreLayout {
  uint32_t n_kv_heads = 0, block_size = 0, head_dim = 0, v_dim = 0;
  uint32_t dtype_k = 0, dtype_v = 0;
  uint32_t k_token_bytes = 0, v_token_bytes = 0;
  uint64_t block_bytes = 0;
  bool operator==(const StoreLayout&) const = default;
};
StoreLayout store_layout(const kvasir_geometry& geometry, const sdk::KvLayout& layout);

// Native byte order: a file of a machine with another one is of another format.
struct StoreHeader {
  static constexpr std::array<char, 8> kMagic = {'K', 'V', 'A', 'S', 'B', 'L', 'K', '1'};
  std::array<char, 8> magic = kMagic;
  StoreName name;
  StoreLayout layout;
  Hash checksum{};  // XXH3 of the header with zeros here, and the block's bytes
};
static_assert(sizeof(StoreHeader) == 104);

// XXH3 of the header with a checksum of zeros, and the bytes.
Hash record_checksum(const StoreHeader& header, std::span<const std::byte> bytes);
// Empty, or why a header is not that of `name` in `layout` (null: in any).
std::string wrong_header(const StoreHeader& header, const StoreName& name,
                         const StoreLayout* layout);

// `from`: layout.block_bytes of the block. Returns the errno that stopped it, or 0. The descriptor
// is at the start of an empty file.
int write_record(int file, const StoreName& name, const StoreLayout& layout, const std::byte* from);
// The header and, where `to` is not null, the bytes. `layout`, unless null, must be the file's.
// Null, and the reason in `why`, when it is not whole or not `name`'s.
std::optional<StoreHeader> read_record(int file, const StoreName& name, const StoreLayout* layout,
                                       std::byte* to, std::string& why);

}  // namespace kvasir::tiered
