// A block as one string of bytes: the header of a store's file, then the block, by zstd where that
// pays.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "plugins/storage/tiered/store_record.h"

struct ZSTD_CCtx_s;

namespace kvasir::tiered {

enum class Compress { kAuto, kAlways, kNever };

// For one thread at a time.
class Packer {
 public:
  explicit Packer(Compress when);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // kAuto: compressed when the bytes it takes away would have been longer under way, at the rate of
  // sent(), than compressing took. Where that failed, some blocks go by before it is tried again.
  // May throw bad_alloc.
  const std::string& pack(const StoreName& name, const StoreLayout& layout, const std::byte* from);
  // What the server took lately, in which time.
  void sent(uint64_t bytes, double seconds);

 private:
  bool compress(const StoreLayout& layout, const std::byte* from);

  Compress when_;
  std::unique_ptr<ZSTD_CCtx_s, size_t (*)(ZSTD_CCtx_s*)> context_;
  std::string record_;
  double bytes_per_second_ = 0;  // 0: not known yet
  uint32_t n_to_skip_ = 0;
};

// The most bytes that pack() makes of a block.
inline uint64_t most_packed_bytes(const StoreLayout& layout) {
  return sizeof(StoreHeader) + layout.block_bytes;
}
// The header alone, unchecked; null where that is none.
std::optional<StoreHeader> peek(std::string_view record);
// The header and, where `to` is not null, the block: layout->block_bytes of it. `layout`, unless
// null, must be the record's. Null, and the reason in `why`, when it is not whole or not `name`'s.
std::optional<StoreHeader> unpack(std::string_view record, const StoreName& name,
                                  const StoreLayout* layout, std::byte* to, std::string& why);

}  // namespace kvasir::tiered
