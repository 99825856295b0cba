// Rotated copies of keys and queries; see rotation.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/rotation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/runtime/blocks/element_type.h"
#include "core/runtime/blocks/memory_bridge.h"
#include "kernels/convert.h"

namespace kvasir {

std::vector<float>& Rotation::new_copy(uint64_t n) {
  // Copies come in the same order in every layer; memory of another size is given back.
  std::vector<float> memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.front());
    spare_.pop_front();
  }
  if (memory.capacity() < n || memory.capacity() / 2 > n) memory = std::vector<float>(n);
  memory.resize(n);
  return copies_.emplace_back(std::move(memory));
}

void Rotation::to_slots(Part& part, const Piece& piece, const LayerState& state,
                        uint64_t rope_len) {
  const Slots slots = slots_of(part);
  rotate_keys(part, rope_len, &slots);
  rotate_queries(part, piece, state, rope_len, slots);
}

Rotation::Slots Rotation::slots_of(const Part& part) const {
  const uint32_t b = c_.geometry.block_size;
  Slots slots(c_.geometry.n_kv_heads, std::vector<uint32_t>(part.leases.size() * b, UINT32_MAX));
  for (const kvasir_attn_range& range : part.ranges) {
    uint32_t next = 0;
    for (uint64_t i = range.item_begin; i < range.item_end; ++i) {
      const uint32_t item = part.items[i];
      if (!part.in_blocks())
        slots[range.kv_head][item] = next++;
      else
        for (uint32_t t = 0; t < part.leases[item].n_tokens; ++t)
          slots[range.kv_head][item * b + t] = next++;
    }
  }
  return slots;
}

// The slot of a query's own token may differ from kv head to kv head.
void Rotation::rotate_queries(Part& part, const Piece& piece, const LayerState& state,
                              uint64_t rope_len, const Slots& slots) {
  const uint32_t group = c_.group_size(), dim = c_.geometry.head_dim;
  const uint64_t n_queries = part.abi.q.shape[0];
  const uint64_t width = uint64_t{c_.geometry.n_q_heads} * dim;
  const auto* from = static_cast<const float*>(part.abi.q.data);
  std::vector<float>& copy = new_copy(n_queries * width);
  for (uint32_t i = 0; i < piece.n_q; ++i) {
    const uint32_t pos = piece.first_pos() + i;
    const uint64_t at = (uint64_t{piece.q_begin} + i) * width;
    std::copy(from + at, from + at + width, copy.data() + at);
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
      const uint32_t slot = slots[head][item_of(state, c_.geometry.block_size, head, pos)];
      const int32_t delta[] = {static_cast<int32_t>(slot) - static_cast<int32_t>(pos)};
      rope().shift(copy.data() + at + uint64_t{head} * group * dim, 1, group, dim, delta, rope_len);
    }
  }
  part.abi.q = host_view(copy.data(), KVASIR_DTYPE_F32, {n_queries, c_.geometry.n_q_heads, dim});
}

std::vector<bool> Rotation::attended_keys(const Part& part) const {
  const uint32_t heads = c_.geometry.n_kv_heads, b = c_.geometry.block_size;
  const auto is_partial = [](const kvasir_lease& lease) {
    return lease.state == KVASIR_LEASE_PARTIAL;
  };
  if (std::none_of(part.leases.begin(), part.leases.end(), is_partial)) return {};
  std::vector<bool> keys(part.leases.size() * b * heads);
  const uint32_t per = part.in_blocks() ? b : 1;
  for (const kvasir_attn_range& range : part.ranges)
    for (uint64_t i = range.item_begin; i < range.item_end; ++i)
      for (uint64_t t = 0; t < per; ++t)
        keys[(uint64_t{part.items[i]} * per + t) * heads + range.kv_head] = true;
  return keys;
}

std::vector<uint32_t> Rotation::touched_blocks(const Part& part) const {
  std::vector<bool> wanted(part.leases.size(), part.null_items);
  const uint32_t per = part.in_blocks() ? 1 : c_.geometry.block_size;
  for (const uint32_t item : part.items) wanted[item / per] = true;
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; block < wanted.size(); ++block)
    if (wanted[block] && part.leases[block].k) blocks.push_back(block);
  return blocks;
}

void Rotation::rotate_keys(Part& part, uint64_t rope_len, const Slots* slots) {
  const uint32_t b = c_.geometry.block_size;
  const uint64_t per = uint64_t{b} * c_.geometry.n_kv_heads * c_.geometry.head_dim;
  const std::vector<uint32_t> blocks = touched_blocks(part);
  std::vector<float>& copy = new_copy(blocks.size() * per);
  const size_t n_formats = c_.store.formats().size();
  const std::vector<bool> attended = attended_keys(part);
  c_.pool.parallel_for(blocks.size(), 1, [&](uint64_t begin, uint64_t end, uint32_t) {
    std::vector<uint32_t> pos(b);
    for (uint64_t i = begin; i < end; ++i) {
      kvasir_lease& lease = part.leases[blocks[i]];
      float* keys = copy.data() + i * per;
      copy_keys(lease, blocks[i], attended, keys);
      if (slots)
        turn_to_slots(lease, blocks[i], *slots, rope_len, keys);
      else
        turn_to_positions(lease, pos, rope_len, keys);
      lease.k = keys;
      lease.format += static_cast<uint32_t>(n_formats);
    }
  });
}

void Rotation::copy_keys(const kvasir_lease& lease, uint32_t block,
                         const std::vector<bool>& attended, float* keys) const {
  const uint32_t heads = c_.geometry.n_kv_heads, dim = c_.geometry.head_dim;
  const uint32_t b = c_.geometry.block_size;
  const kvasir_kv_format& format = c_.store.formats()[lease.format];
  const kernels::ElementType type = element_type(format.dtype_k);
  const bool one = lease.kv_head != KVASIR_ALL_HEADS;
  for (uint32_t t = 0; t < lease.n_tokens; ++t)
    for (uint32_t head = 0; head < (one ? 1 : heads); ++head) {
      const uint64_t key = (uint64_t{block} * b + t) * heads + (one ? lease.kv_head : head);
      if (!attended.empty() && !attended[key]) continue;  // unspecified bytes
      kernels::convert_to_f32(type,
                              static_cast<const std::byte*>(lease.k) + head * format.k_head_stride +
                                  t * format.k_token_stride,
                              keys + (uint64_t{t} * heads + head) * dim, dim);
    }
}

void Rotation::turn_to_slots(const kvasir_lease& lease, uint32_t block, const Slots& slots,
                             uint64_t rope_len, float* keys) const {
  const uint32_t heads = c_.geometry.n_kv_heads, dim = c_.geometry.head_dim;
  const bool one = lease.kv_head != KVASIR_ALL_HEADS;
  for (uint32_t t = 0; t < lease.n_tokens; ++t)
    for (uint32_t head = 0; head < (one ? 1 : heads); ++head) {
      const auto& slot = slots[one ? lease.kv_head : head];
      const uint32_t at[] = {slot[block * c_.geometry.block_size + t]};
      if (at[0] == UINT32_MAX) continue;
      rope().apply(keys + (uint64_t{t} * heads + head) * dim, 1, 1, dim, at, rope_len);
    }
}

void Rotation::turn_to_positions(const kvasir_lease& lease, std::span<uint32_t> pos,
                                 uint64_t rope_len, float* keys) const {
  for (uint32_t t = 0; t < lease.n_tokens; ++t) pos[t] = position_in(lease, t);
  rope().apply(keys, lease.n_tokens, c_.geometry.n_kv_heads, c_.geometry.head_dim,
               pos.first(lease.n_tokens), rope_len);
}

}  // namespace kvasir
