// K and V of tokens as f32; see token_values.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/token_values.h"

#include <cstddef>
#include <deque>
#include <vector>

#include "core/runtime/blocks/element_type.h"
#include "kernels/convert.h"

namespace kvasir {
namespace {

// Below this many tokens starting the threads costs more than they save.
constexpr uint64_t kParallelTokens = 16;

}  // namespace

void TokenValues::write(const BlockList& list, uint32_t first, uint64_t n, const KvRows& rows) {
  write_tokens(list, rows, n, [&](uint64_t i) { return static_cast<uint32_t>(first + i); });
}

void TokenValues::write(const BlockList& list, std::span<const uint32_t> positions,
                        const KvRows& rows) {
  write_tokens(list, rows, positions.size(), [&](uint64_t i) { return positions[i]; });
}

template <class Position>
void TokenValues::write_tokens(const BlockList& list, const KvRows& rows, uint64_t n,
                               const Position& position) {
  if (!rows.on_device) write_on_host(list, rows, n, position);
  write_by_storage(list, rows, n, position);
}

template <class Position>
void TokenValues::write_on_host(const BlockList& list, const KvRows& rows, uint64_t n,
                                const Position& position) {
  const uint32_t block_size = access_.block_size, n_kv_heads = access_.n_kv_heads;
  const uint32_t head_dim = access_.head_dim, v_dim = access_.v_dim;
  const auto write = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t pos = position(i);
      const kvasir_lease& lease = list.leases[pos / block_size];
      if (!access_.on_host(lease)) continue;
      const kvasir_kv_format& format = access_.format_of(lease);
      const uint32_t token = pos % block_size;
      auto* to_k = static_cast<std::byte*>(lease.k) + token * format.k_token_stride;
      auto* to_v = static_cast<std::byte*>(lease.v) + token * format.v_token_stride;
      for (uint32_t head = 0; head < n_kv_heads; ++head) {
        kernels::convert_from_f32(element_type(format.dtype_k),
                                  rows.k + (i * n_kv_heads + head) * head_dim,
                                  to_k + head * format.k_head_stride, head_dim);
        kernels::convert_from_f32(element_type(format.dtype_v),
                                  rows.v + (i * n_kv_heads + head) * v_dim,
                                  to_v + head * format.v_head_stride, v_dim);
      }
    }
  };
  if (n < kParallelTokens)
    write(0, n, 0);
  else
    pool_.parallel_for(n, 0, write);
}

kvasir_view TokenValues::to_storage(const float* rows, bool on_device, uint64_t n, uint64_t dim,
                                    MemoryBridge::Buffer& hold) {
  MemoryBridge& bridge = access_.bridge;
  if (!on_device && access_.storage.reads(KVASIR_MEM_HOST))  // else the bridge copies and counts
    bridge.add_copied(n * access_.n_kv_heads * dim * sizeof(float));
  return bridge.to_reader(access_.storage,
                          bridge.view(on_device, rows, {n, access_.n_kv_heads, dim}), hold);
}

// One call of the storage for each run of tokens that the host cannot reach.
template <class Position>
void TokenValues::write_by_storage(const BlockList& list, const KvRows& rows, uint64_t n,
                                   const Position& position) {
  const uint64_t k_dim = access_.head_dim, v_dim = access_.v_dim, heads = access_.n_kv_heads;
  std::vector<kvasir_token_span> spans;
  std::deque<kvasir_lease> leases;  // of the spans
  const kvasir_lease* last = nullptr;
  uint64_t first = 0;  // token of k and v that the spans begin with
  const auto flush = [&](uint64_t end) {
    if (spans.empty()) return;
    access_.storage.write_tokens(
        spans,
        to_storage(rows.k + first * heads * k_dim, rows.on_device, end - first, k_dim, k_hold_),
        to_storage(rows.v + first * heads * v_dim, rows.on_device, end - first, v_dim, v_hold_));
    spans.clear();
    leases.clear();
  };
  for (uint64_t i = 0; i < n; ++i) {
    const kvasir_lease& lease = list.leases[position(i) / access_.block_size];
    if (access_.on_host(lease)) {
      flush(i);
      continue;
    }
    if (spans.empty()) first = i;
    const uint32_t token = position(i) % access_.block_size;
    const bool goes_on = !spans.empty() && last == &lease &&
                         spans.back().first_token + spans.back().n_tokens == token;
    if (goes_on)
      ++spans.back().n_tokens;
    else
      spans.push_back({&leases.emplace_back(access_.as_storage_counts(lease)), token, 1});
    last = &lease;
  }
  flush(n);
}

void TokenValues::read(const kvasir_lease& lease, uint32_t token, float* k, float* v) const {
  if (!access_.on_host(lease)) return read_by_storage(lease, token, k, v);
  const kvasir_kv_format& format = access_.format_of(lease);
  const auto* from_k = static_cast<const std::byte*>(lease.k) + token * format.k_token_stride;
  const auto* from_v = static_cast<const std::byte*>(lease.v) + token * format.v_token_stride;
  for (uint64_t head = 0; head < access_.n_kv_heads; ++head) {
    kernels::convert_to_f32(element_type(format.dtype_k), from_k + head * format.k_head_stride,
                            k + head * access_.head_dim, access_.head_dim);
    kernels::convert_to_f32(element_type(format.dtype_v), from_v + head * format.v_head_stride,
                            v + head * access_.v_dim, access_.v_dim);
  }
}

// The storage saves [kv head][token], K before V of each.
void TokenValues::read_by_storage(const kvasir_lease& lease, uint32_t token, float* k,
                                  float* v) const {
  const kvasir_kv_format& format = access_.format_of(lease);
  const uint64_t k_bytes = access_.k_bytes(format), v_bytes = access_.v_bytes(format);
  std::vector<std::byte> bytes(access_.n_kv_heads * (k_bytes + v_bytes));
  const kvasir_lease counted = access_.as_storage_counts(lease);
  const kvasir_token_span one[] = {{&counted, token, 1}};
  access_.storage.save_tokens(one, bytes);
  for (uint64_t head = 0; head < access_.n_kv_heads; ++head) {
    const std::byte* from = bytes.data() + head * (k_bytes + v_bytes);
    kernels::convert_to_f32(element_type(format.dtype_k), from, k + head * access_.head_dim,
                            access_.head_dim);
    kernels::convert_to_f32(element_type(format.dtype_v), from + k_bytes, v + head * access_.v_dim,
                            access_.v_dim);
  }
}

}  // namespace kvasir
