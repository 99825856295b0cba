// See block_sums.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/check/block_sums.h"

#include <xxhash.h>

#include <cstddef>

#include "core/plugin/dtypes.h"
#include "core/plugin/instance.h"

namespace kvasir {
namespace {

std::string place(const kvasir_block_key& key) {
  return "layer " + std::to_string(key.layer) + ", block " + std::to_string(key.block);
}

}  // namespace

uint64_t sum_of(const kvasir_lease& lease, uint32_t n_tokens, const kvasir_kv_format& format,
                const BlockShape& shape) {
  if (format.mem_kind == KVASIR_MEM_DEVICE || !lease.k || !lease.v) return 0;
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  const uint32_t n_heads = lease.kv_head == KVASIR_ALL_HEADS ? shape.n_kv_heads : 1;
  const uint64_t k_bytes = row_bytes(format.dtype_k, shape.head_dim);
  const uint64_t v_bytes = row_bytes(format.dtype_v, shape.v_dim);
  for (uint64_t head = 0; head < n_heads; ++head)
    for (uint64_t token = 0; token < n_tokens; ++token) {
      XXH3_64bits_update(state,
                         static_cast<const std::byte*>(lease.k) + head * format.k_head_stride +
                             token * format.k_token_stride,
                         k_bytes);
      XXH3_64bits_update(state,
                         static_cast<const std::byte*>(lease.v) + head * format.v_head_stride +
                             token * format.v_token_stride,
                         v_bytes);
    }
  const uint64_t sum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return sum == 0 ? 1 : sum;
}

BlockSums::Key BlockSums::key_of(const Instance& storage, const kvasir_block_key& key) {
  return {&storage, key.hash[0], key.hash[1], key.layer, key.block, key.kv_head};
}

void BlockSums::lease(const Instance& storage, const kvasir_block_key& key,
                      const kvasir_lease& lease, uint64_t sum) {
  if (!lease.k) return;
  leased_[lease.k] = {sum, key.n_tokens, key.layer, key.block, storage.id()};
  if (lease.lease) address_of_[{&storage, lease.lease}] = lease.k;
}

void BlockSums::seal(const Instance& storage, const kvasir_block_key& key,
                     const kvasir_lease& lease, uint64_t sum) {
  if (sum == 0) return;
  const std::lock_guard lock(mutex_);
  sealed_[key_of(storage, key)] = {sum, key.n_tokens, lease.format, lease.k};
  this->lease(storage, key, lease, sum);
}

std::string BlockSums::check_lease(const Instance& storage, const kvasir_block_key& key,
                                   const kvasir_lease& lease, uint64_t sum) {
  const std::lock_guard lock(mutex_);
  const auto found = sealed_.find(key_of(storage, key));
  if (sum == 0 || found == sealed_.end() || found->second.n_tokens != key.n_tokens ||
      found->second.format != lease.format)
    return "";
  if (found->second.sum != sum) return place(key) + ": K or V is not what it was when sealed";
  found->second.k = lease.k;
  this->lease(storage, key, lease, sum);
  return "";
}

void BlockSums::forget(const Instance& storage, const kvasir_block_key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = sealed_.find(key_of(storage, key));
  if (found == sealed_.end()) return;
  leased_.erase(found->second.k);
  sealed_.erase(found);
}

void BlockSums::forget_at(const void* k) {
  const std::lock_guard lock(mutex_);
  leased_.erase(k);
}

void BlockSums::release(const Instance& storage, uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto found = address_of_.find({&storage, lease});
  if (found == address_of_.end()) return;
  leased_.erase(found->second);
  address_of_.erase(found);
}

BlockSums::Known BlockSums::known_at(const void* k) const {
  const std::lock_guard lock(mutex_);
  const auto found = leased_.find(k);
  return found == leased_.end() ? Known{} : found->second;
}

}  // namespace kvasir
