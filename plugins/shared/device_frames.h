// Where blocks of a storage lie in a device's memory: those of all kv heads and those of one, in
// one part (kv_layout). For plugins that link kvasir::cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/plugin.h>

#include <string>

#include "plugins/shared/device_arena.h"
#include "plugins/shared/kv_layout.h"

namespace kvasir::sdk {

// Throws Error where no device can hold them.
inline void check_device_blocks(const kvasir_geometry& geometry, const KvTypes& types) {
  kv_layout(geometry, types, geometry.n_kv_heads);
  const std::string problem = cuda::device_problem();
  if (!problem.empty()) throw Error(KVASIR_ERR_UNSUPPORTED, problem);
}

// For one thread at a time.
class DeviceFrames {
 public:
  DeviceFrames(const kvasir_geometry& geometry, const KvTypes& types)
      : all_heads_(kv_layout(geometry, types, geometry.n_kv_heads)),
        one_head_(kv_layout(geometry, types, 1)) {}

  const KvLayout& layout(uint32_t kv_head) const {
    return kv_head == KVASIR_ALL_HEADS ? all_heads_.layout : one_head_.layout;
  }
  kvasir_kv_format format() const {
    kvasir_kv_format format = all_heads_.layout.format;
    format.mem_kind = KVASIR_MEM_DEVICE;
    return format;
  }
  // most_bytes: that more memory may be taken of the device. Throws cuda::Error, also of a device
  // that is full.
  std::byte* allocate(uint32_t kv_head, uint64_t most_bytes) {
    return size_class(kv_head).arena.allocate(most_bytes);
  }
  void free(uint32_t kv_head, std::byte* data) noexcept { size_class(kv_head).arena.free(data); }
  // What the device refused, as an error of the call that asked for a block.
  Error refusal(const std::string& where, const cuda::Error& e, const char* remedy) const {
    const uint64_t held = all_heads_.arena.bytes() + one_head_.arena.bytes();
    return {
        e.is_out_of_memory() ? KVASIR_ERR_OUT_OF_MEMORY : KVASIR_ERR_INTERNAL,
        where + e.what() + " after " + std::to_string(held >> 20) + " MiB for blocks: " + remedy};
  }

  // Throws Error for a lease on other memory than its own.
  void check(const char* storage, const TokenSpans& spans) const {
    for (const kvasir_token_span& span : spans) check(storage, *span.lease);
  }
  void check(const char* storage, const TokenCopies& copies) const {
    for (const kvasir_token_copy& copy : copies)
      for (const kvasir_lease* lease : {copy.from, copy.to}) check(storage, *lease);
  }

 private:
  struct SizeClass {
    explicit SizeClass(const KvLayout& l) : layout(l), arena(l.block_bytes()) {}
    KvLayout layout;
    DeviceArena arena;
  };
  SizeClass& size_class(uint32_t kv_head) {
    return kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
  }
  void check(const char* storage, const kvasir_lease& lease) const {
    for (const void* data : {lease.k, lease.v})
      if (!all_heads_.arena.holds(data) && !one_head_.arena.holds(data))
        fail_invalid(std::string(storage) + ": a lease names memory that is not of its blocks");
  }

  SizeClass all_heads_, one_head_;
};

}  // namespace kvasir::sdk
