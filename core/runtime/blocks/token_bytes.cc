// K and V of tokens as bytes; see token_bytes.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/token_bytes.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "core/runtime/blocks/element_type.h"
#include "kernels/convert.h"

namespace kvasir {
namespace {

constexpr uint64_t kAlign = 64;  // bytes; what plugins may expect of K and of V

}  // namespace

uint64_t TokenBytes::size(const kvasir_lease& lease, uint32_t n_tokens) const {
  const kvasir_kv_format& format = access_.format_of(lease);
  return uint64_t{access_.heads_of(lease)} * n_tokens *
         (access_.k_bytes(format) + access_.v_bytes(format));
}

template <class Fn>
void TokenBytes::for_tokens(const kvasir_lease& lease, uint32_t n_tokens, Fn&& fn) const {
  const kvasir_kv_format& format = access_.format_of(lease);
  const uint64_t k_bytes = access_.k_bytes(format), v_bytes = access_.v_bytes(format);
  auto* k = static_cast<std::byte*>(lease.k);
  auto* v = static_cast<std::byte*>(lease.v);
  for (uint32_t head = 0; head < access_.heads_of(lease); ++head)
    for (uint32_t token = 0; token < n_tokens; ++token) {
      fn(k + head * format.k_head_stride + token * format.k_token_stride, k_bytes);
      fn(v + head * format.v_head_stride + token * format.v_token_stride, v_bytes);
    }
}

std::vector<std::byte> TokenBytes::save(const kvasir_lease& lease, uint32_t n_tokens) const {
  std::vector<std::byte> out(size(lease, n_tokens));
  if (!access_.on_host(lease)) {
    const kvasir_lease counted = access_.as_storage_counts(lease);
    access_.storage.save_tokens({&counted, 0, n_tokens}, out);
    access_.bridge.add_copied(out.size());
    return out;
  }
  std::byte* to = out.data();
  for_tokens(lease, n_tokens, [&](const std::byte* from, size_t n) {
    std::memcpy(to, from, n);
    to += n;
  });
  return out;
}

void TokenBytes::load(const kvasir_lease& lease, uint32_t n_tokens,
                      std::span<const std::byte> from) const {
  if (!access_.on_host(lease)) {
    const kvasir_lease counted = access_.as_storage_counts(lease);
    access_.storage.load_tokens({&counted, 0, n_tokens}, from);
    access_.bridge.add_copied(from.size());
    return;
  }
  for_tokens(lease, n_tokens, [&](std::byte* to, size_t n) {
    std::memcpy(to, from.data(), n);
    from = from.subspan(n);
  });
}

void TokenBytes::copy(std::span<const kvasir_token_copy> copies) const {
  std::vector<kvasir_token_copy> by_storage;
  for (const kvasir_token_copy& copy : copies) {
    if (!access_.on_host(*copy.from) || !access_.on_host(*copy.to)) {
      by_storage.push_back(copy);
    } else if (copy.kv_head != KVASIR_ALL_HEADS) {
      copy_on_host(copy, copy.kv_head);
    } else {
      for (uint32_t head = 0; head < access_.n_kv_heads; ++head) copy_on_host(copy, head);
    }
  }
  if (by_storage.empty()) return;
  std::deque<kvasir_lease> leases;
  for (kvasir_token_copy& copy : by_storage) {
    if (access_.first_format == 0) break;  // the leases count as the storage does
    copy.from = &leases.emplace_back(access_.as_storage_counts(*copy.from));
    copy.to = &leases.emplace_back(access_.as_storage_counts(*copy.to));
  }
  access_.storage.copy_tokens(by_storage);
}

void TokenBytes::copy_on_host(const kvasir_token_copy& copy, uint32_t kv_head) const {
  const kvasir_kv_format& a = access_.format_of(*copy.from);
  const kvasir_kv_format& b = access_.format_of(*copy.to);
  const uint64_t a_head = copy.from->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  const uint64_t b_head = copy.to->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  const auto* k = static_cast<const std::byte*>(copy.from->k) + a_head * a.k_head_stride;
  const auto* v = static_cast<const std::byte*>(copy.from->v) + a_head * a.v_head_stride;
  auto* to_k = static_cast<std::byte*>(copy.to->k) + b_head * b.k_head_stride;
  auto* to_v = static_cast<std::byte*>(copy.to->v) + b_head * b.v_head_stride;
  const uint64_t k_bytes = access_.k_bytes(a), v_bytes = access_.v_bytes(a);
  for (uint64_t i = 0; i < copy.n_tokens; ++i) {
    const uint64_t from = copy.from_token + i, to = copy.to_token + i;
    std::memcpy(to_k + to * b.k_token_stride, k + from * a.k_token_stride, k_bytes);
    std::memcpy(to_v + to * b.v_token_stride, v + from * a.v_token_stride, v_bytes);
  }
}

std::vector<std::byte> TokenBytes::convert(std::span<const std::byte> bytes,
                                           const kvasir_kv_format& from,
                                           const kvasir_kv_format& to) const {
  const uint64_t n = bytes.size() / (access_.k_bytes(from) + access_.v_bytes(from));
  std::vector<std::byte> converted(n * (access_.k_bytes(to) + access_.v_bytes(to)));
  std::vector<float> values(std::max(access_.head_dim, access_.v_dim));
  const std::byte* in = bytes.data();
  std::byte* out = converted.data();
  const auto convert_next = [&](uint32_t from_type, uint32_t to_type, uint32_t width) {
    kernels::convert_to_f32(element_type(from_type), in, values.data(), width);
    kernels::convert_from_f32(element_type(to_type), values.data(), out, width);
    in += kernels::row_bytes(element_type(from_type), width);
    out += kernels::row_bytes(element_type(to_type), width);
  };
  for (uint64_t i = 0; i < n; ++i) {
    convert_next(from.dtype_k, to.dtype_k, access_.head_dim);
    convert_next(from.dtype_v, to.dtype_v, access_.v_dim);
  }
  return converted;
}

void carry_over(const TokenBytes& source, const kvasir_lease& from, const TokenBytes& target,
                const kvasir_lease& to, uint32_t n_tokens) {
  const kvasir_kv_format& a = source.access_.format_of(from);
  const kvasir_kv_format& b = target.access_.format_of(to);
  const std::vector<std::byte> bytes = source.save(from, n_tokens);
  if (a.dtype_k == b.dtype_k && a.dtype_v == b.dtype_v)
    target.load(to, n_tokens, bytes);
  else
    target.load(to, n_tokens, source.convert(bytes, a, b));
}

kvasir_lease TokenBytes::lease_host_memory(const kvasir_lease& lease,
                                           std::vector<std::byte>& memory) const {
  const kvasir_kv_format& format = access_.formats[0];
  const auto extent = [&](uint64_t head_stride, uint64_t token_stride, uint64_t token_bytes) {
    return (access_.n_kv_heads - 1) * head_stride + (access_.block_size - 1) * token_stride +
           token_bytes;
  };
  const uint64_t k_extent =
      extent(format.k_head_stride, format.k_token_stride, access_.k_bytes(format));
  const uint64_t k_reserved = (k_extent + kAlign - 1) / kAlign * kAlign;
  const uint64_t v_extent =
      extent(format.v_head_stride, format.v_token_stride, access_.v_bytes(format));
  memory.resize(k_reserved + v_extent + kAlign - 1);
  const auto misaligned = reinterpret_cast<uintptr_t>(memory.data()) % kAlign;
  kvasir_lease out = lease;
  out.format = 0;
  out.k = memory.data() + (misaligned ? kAlign - misaligned : 0);
  out.v = static_cast<std::byte*>(out.k) + k_reserved;
  return out;
}

}  // namespace kvasir
