// kvasir.device-memory/1 for a storage class with device_alloc(bytes), device_free(data),
// device_copy(to, from), device_zero(data, bytes) and device_all_finite(view).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/sdk/plugin.h>

namespace kvasir::gpu {

template <class T>
const kvasir_device_memory* device_memory_table() {
  using sdk::detail::as;
  static constexpr kvasir_device_memory kTable = {
      sizeof(kvasir_device_memory),
      0,
      [](void* self, uint64_t bytes, void** out, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { *out = as<T>(self).device_alloc(bytes); });
      },
      [](void* self, void* data) noexcept { as<T>(self).device_free(data); },
      [](void* self, const kvasir_view* to, const kvasir_view* from, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { as<T>(self).device_copy(*to, *from); });
      },
      [](void* self, void* data, uint64_t bytes, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { as<T>(self).device_zero(data, bytes); });
      },
      [](void* self, const kvasir_view* of, uint32_t* out, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { *out = as<T>(self).device_all_finite(*of) ? 1 : 0; });
      }};
  return &kTable;
}

// Of a contiguous view of F32, U32 or U8.
inline uint64_t bytes_of(const kvasir_view& view) {
  uint64_t bytes = view.dtype == KVASIR_DTYPE_U8 ? 1 : 4;
  for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
  return bytes;
}

}  // namespace kvasir::gpu
