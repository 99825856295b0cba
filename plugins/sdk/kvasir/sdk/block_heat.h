// kvasir.block-heat/1 for a storage class with wants_heat(), which returns a KVASIR_HEAT_*, and
// heat(keys, values).
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/ext/draft/block_heat.h>
#include <kvasir/sdk/plugin.h>

#include <span>

namespace kvasir::sdk {

template <class T>
const kvasir_block_heat* block_heat_table() {
  static constexpr kvasir_block_heat kTable = {
      sizeof(kvasir_block_heat), 0,
      [](void* self) noexcept { return detail::as<T>(self).wants_heat(); },
      [](void* self, const kvasir_block_key* keys, const float* value, uint32_t n,
         uint32_t key_size, kvasir_err* err) noexcept {
        return guard(err, [&] {
          detail::as<T>(self).heat(BlockKeys(keys, n, key_size), std::span(value, n));
        });
      }};
  return &kTable;
}

}  // namespace kvasir::sdk
