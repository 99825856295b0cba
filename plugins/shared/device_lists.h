// kvasir.device-lists/1 of a selector that chooses on a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_lists.h>
#include <kvasir/sdk/plugin.h>

namespace kvasir::sdk {

// Of a class with select_there(step, in, out, index).
template <class T>
const kvasir_device_lists* device_lists_table() {
  using detail::as;
  static constexpr kvasir_device_lists kTable = {
      sizeof(kvasir_device_lists), 0,
      [](void* self, const kvasir_step* step, const kvasir_sel_in* in, kvasir_selection* out,
         const kvasir_view* index, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).select_there(Step(*step), *in, *out, *index); });
      }};
  return &kTable;
}

}  // namespace kvasir::sdk
