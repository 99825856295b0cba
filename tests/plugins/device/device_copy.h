// What the test device's storage moves: tokens of blocks, and views for kvasir.device-memory/1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/sdk/view.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/plugins/device/device_blocks.h"

namespace kvasir::test {

inline uint32_t heads_of(const DeviceBlocks& blocks, const kvasir_lease& lease) {
  return lease.kv_head == KVASIR_ALL_HEADS ? blocks.geometry().n_kv_heads : 1;
}

inline void write_spans(const DeviceBlocks& blocks, const sdk::TokenSpans& spans,
                        const kvasir_view& k, const kvasir_view& v) {
  const float* from[] = {sdk::floats(k, "K"), sdk::floats(v, "V")};
  const uint32_t dims[] = {blocks.geometry().head_dim, blocks.geometry().v_dim};
  for (const kvasir_token_span& span : spans)
    for (uint32_t t = 0; t < span.n_tokens; ++t)
      for (const bool is_v : {false, true})
        for (uint32_t head = 0; head < blocks.geometry().n_kv_heads; ++head) {
          kernels::convert_from_f32(blocks.type(), from[is_v],
                                    blocks.vector(*span.lease, is_v, head, span.first_token + t),
                                    dims[is_v]);
          from[is_v] += dims[is_v];
        }
}

// Returns how many tokens of one head it copied.
inline uint64_t copy_between(const DeviceBlocks& blocks, const sdk::TokenCopies& copies) {
  uint64_t n_copied = 0;
  for (const kvasir_token_copy& copy : copies) {
    const bool is_all = copy.kv_head == KVASIR_ALL_HEADS;
    const uint32_t first = is_all ? 0 : copy.kv_head;
    const uint32_t end = is_all ? blocks.geometry().n_kv_heads : first + 1;
    n_copied += (end - first) * copy.n_tokens;
    for (uint32_t head = first; head < end; ++head)
      for (const bool is_v : {false, true})
        for (uint32_t t = 0; t < copy.n_tokens; ++t)
          std::memcpy(blocks.vector(*copy.to, is_v, head, copy.to_token + t),
                      blocks.vector(*copy.from, is_v, head, copy.from_token + t),
                      blocks.vector_bytes(is_v));
  }
  return n_copied;
}

// fn(K or V of a token, place among the bytes, bytes), in the order of save_tokens().
template <class Fn>
void for_each_vector(const DeviceBlocks& blocks, const sdk::TokenSpans& spans, uint64_t n_bytes,
                     Fn&& fn) {
  uint64_t at = 0;
  for (const kvasir_token_span& span : spans)
    for (uint32_t head = 0; head < heads_of(blocks, *span.lease); ++head)
      for (uint32_t t = 0; t < span.n_tokens; ++t)
        for (const bool is_v : {false, true}) {
          const uint64_t n = blocks.vector_bytes(is_v);
          if (at + n > n_bytes) sdk::fail_invalid("too few bytes for these tokens");
          fn(blocks.vector(*span.lease, is_v, head, span.first_token + t), at, n);
          at += n;
        }
  if (at != n_bytes) sdk::fail_invalid("too many bytes for these tokens");
}

inline uint64_t bytes_of(const kvasir_view& view) {
  uint64_t bytes = view.dtype == KVASIR_DTYPE_U8 ? 1 : 4;
  for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
  return bytes;
}

// Contiguous views, as the host hands them over. checks: has all_finite(); a table of before it
// came ends there.
inline const kvasir_device_memory& device_memory_table(bool checks = true) {
  static constexpr kvasir_device_memory table = {
      sizeof table,
      0,
      [](void*, uint64_t bytes, void** out, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { *out = DeviceMemory::instance().alloc(bytes); });
      },
      [](void*, void* data) noexcept {
        sdk::guard(nullptr, [&] { DeviceMemory::instance().free(data); });
      },
      [](void*, const kvasir_view* to, const kvasir_view* from, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] {
          for (const kvasir_view* view : {to, from})
            if (view->mem_kind == KVASIR_MEM_DEVICE) inside(*view, "a copied view");
          if (bytes_of(*to) != bytes_of(*from)) sdk::fail_invalid("views of other shapes");
          const DeviceMemory::Access access;
          std::memcpy(to->data, from->data, bytes_of(*to));
        });
      },
      [](void*, void* data, uint64_t bytes, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] {
          if (!DeviceMemory::instance().holds(data, bytes)) sdk::fail_invalid("not on the device");
          const DeviceMemory::Access access;
          std::memset(data, 0, bytes);
        });
      },
      [](void*, const kvasir_view* of, uint32_t* out, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] {
          const kvasir_view here = inside(*of, "what is checked");
          const DeviceMemory::Access access;
          const float* const values = sdk::floats(here, "what is checked");
          *out = std::all_of(values, values + bytes_of(here) / sizeof(float),
                             [](float value) { return std::isfinite(value); });
        });
      },
      nullptr};
  static constexpr kvasir_device_memory before = [] {
    kvasir_device_memory shorter = table;
    shorter.struct_size = offsetof(kvasir_device_memory, all_finite);
    return shorter;
  }();
  return checks ? table : before;
}

}  // namespace kvasir::test
