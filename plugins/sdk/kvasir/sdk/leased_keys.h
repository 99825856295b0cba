// Keys of one kv head in a block that the host lends.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/step.h>
#include <kvasir/sdk/strided.h>
#include <kvasir/step.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::sdk {

// Keys of one kv head in one block: n_tokens keys of head_dim elements, token_stride bytes apart.
struct HeadKeys {
  const std::byte* k;
  uint32_t dtype;  // KVASIR_DTYPE_*
  uint32_t n_tokens;
  uint64_t token_stride;
};

inline Strided<const kvasir_kv_format> formats_of(const kvasir_geometry& geometry) {
  return {geometry.formats, geometry.n_formats, geometry.format_size};
}

class LeasedKeys {
 public:
  LeasedKeys() = default;
  explicit LeasedKeys(const kvasir_geometry& geometry) : block_size_(geometry.block_size) {
    for (const kvasir_kv_format& format : formats_of(geometry)) formats_.push_back(format);
  }

  // The first n_tokens of `block`, at least one. Throws when the lease has no keys (null has none).
  HeadKeys keys(const kvasir_lease* lease, uint32_t kv_head, uint32_t block,
                uint32_t n_tokens) const {
    if (!lease || !lease->k || lease->format >= formats_.size() || n_tokens == 0 ||
        n_tokens > block_size_) {
      fail_invalid("block " + std::to_string(block) + " has no keys at hand");
    }
    const kvasir_kv_format& format = formats_[lease->format];
    return {head_keys(*lease, format, kv_head), format.dtype_k, n_tokens, format.k_token_stride};
  }

 private:
  uint32_t block_size_ = 1;
  std::vector<kvasir_kv_format> formats_;
};

}  // namespace kvasir::sdk
