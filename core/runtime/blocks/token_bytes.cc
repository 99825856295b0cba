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

constexpr uint64_t kMostTogether = uint64_t{4} << 20;  // bytes that bring_over() saves in one call

}  // namespace

uint64_t TokenBytes::size(const kvasir_lease& lease, uint32_t n_tokens) const {
  const kvasir_kv_format& format = access_.format_of(lease);
  return uint64_t{access_.heads_of(lease)} * n_tokens *
         (access_.k_bytes(format) + access_.v_bytes(format));
}

template <class Fn>
void TokenBytes::for_tokens(const kvasir_lease& lease, uint32_t first, uint32_t n_tokens,
                            Fn&& fn) const {
  const kvasir_kv_format& format = access_.format_of(lease);
  const uint64_t k_bytes = access_.k_bytes(format), v_bytes = access_.v_bytes(format);
  auto* k = static_cast<std::byte*>(lease.k);
  auto* v = static_cast<std::byte*>(lease.v);
  for (uint32_t head = 0; head < access_.heads_of(lease); ++head)
    for (uint32_t token = first; token < first + n_tokens; ++token) {
      fn(k + head * format.k_head_stride + token * format.k_token_stride, k_bytes);
      fn(v + head * format.v_head_stride + token * format.v_token_stride, v_bytes);
    }
}

std::vector<std::byte> TokenBytes::save(const kvasir_lease& lease, uint32_t n_tokens) const {
  std::vector<std::byte> out(size(lease, n_tokens));
  const kvasir_token_span one[] = {{&lease, 0, n_tokens}};
  save(one, out);
  return out;
}

void TokenBytes::save(std::span<const kvasir_token_span> spans, std::span<std::byte> to) const {
  if (!access_.on_host(*spans[0].lease)) {
    std::vector<kvasir_token_span> counted(spans.begin(), spans.end());
    std::deque<kvasir_lease> leases;
    for (kvasir_token_span& span : counted)
      span.lease = &leases.emplace_back(access_.as_storage_counts(*span.lease));
    access_.storage.save_tokens(counted, to);
    access_.bridge.add_copied(to.size());
    return;
  }
  std::byte* at = to.data();
  for (const auto& [lease, first, n_tokens] : spans)
    for_tokens(*lease, first, n_tokens, [&](const std::byte* from, size_t n) {
      std::memcpy(at, from, n);
      at += n;
    });
}

void TokenBytes::load(const kvasir_lease& lease, uint32_t n_tokens,
                      std::span<const std::byte> from) const {
  if (!access_.on_host(lease)) {
    const kvasir_lease counted = access_.as_storage_counts(lease);
    access_.storage.load_tokens({&counted, 0, n_tokens}, from);
    access_.bridge.add_copied(from.size());
    return;
  }
  write(lease, 0, n_tokens, from);
}

void TokenBytes::write(const kvasir_lease& lease, uint32_t first, uint32_t n_tokens,
                       std::span<const std::byte> from) const {
  for_tokens(lease, first, n_tokens, [&](std::byte* to, size_t n) {
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

void bring_over(const TokenBytes& source, std::span<const kvasir_token_span> from,
                const TokenBytes& target, std::span<const kvasir_lease> to) {
  std::vector<std::byte> bytes;
  for (size_t begin = 0, end = 0; begin < from.size(); begin = end) {
    uint64_t n_bytes = 0;
    for (; end < from.size(); ++end) {
      const uint64_t more = source.size(*from[end].lease, from[end].n_tokens);
      const bool is_alike =
          source.access_.on_host(*from[end].lease) == source.access_.on_host(*from[begin].lease);
      if (end > begin && (!is_alike || n_bytes + more > kMostTogether)) break;
      n_bytes += more;
    }
    bytes.resize(n_bytes);
    source.save(from.subspan(begin, end - begin), bytes);
    std::span<const std::byte> rest(bytes);
    for (size_t i = begin; i < end; ++i) {
      const auto& [lease, first, n_tokens] = from[i];
      const auto of_span = rest.first(source.size(*lease, n_tokens));
      rest = rest.subspan(of_span.size());
      const kvasir_kv_format& a = source.access_.format_of(*lease);
      const kvasir_kv_format& b = target.access_.format_of(to[i]);
      if (a.dtype_k == b.dtype_k && a.dtype_v == b.dtype_v)
        target.write(to[i], first, n_tokens, of_span);
      else
        target.write(to[i], first, n_tokens, source.convert(of_span, a, b));
    }
  }
}

}  // namespace kvasir
