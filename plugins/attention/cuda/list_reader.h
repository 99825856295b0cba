// kvasir.device-list-reader/1: the table of a backend, and what of a call is checked first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_lists.h>
#include <kvasir/sdk/plugin.h>

#include "plugins/shared/attention_geometry.h"

namespace kvasir::attention {

// Throws sdk::Error for lists of no part, of parts that have none, or whose indices are not where
// they should be.
inline void check_lists(const kvasir_attn_in& in, const kvasir_attn_lists& lists) {
  const kvasir_view& index = lists.index;
  if (index.mem_kind != KVASIR_MEM_DEVICE || index.dtype != KVASIR_DTYPE_U32 || index.rank != 1 ||
      index.stride[0] != sizeof(uint32_t))
    sdk::fail_invalid("the indices of lists must be u32 in device memory, contiguous");
  for (const kvasir_attn_list& list :
       sdk::Strided<const kvasir_attn_list>(lists.lists, lists.n_lists, lists.list_size)) {
    if (list.part >= in.n_parts)
      sdk::fail_invalid("a list names part " + std::to_string(list.part) + " of " +
                        std::to_string(in.n_parts));
    const kvasir_attn_part& part = parts_of(in)[list.part];
    if (part.unit != KVASIR_UNIT_BLOCK || !part.items || part.log_weight)
      sdk::fail_invalid("a list on the device in a part of tokens, without items or with weights");
  }
}

// Of a class with kept_bytes(n_blocks), run_with_lists(step, in, lists, out) and forget(seq).
template <class T>
const kvasir_device_list_reader* list_reader_table() {
  using sdk::detail::as;
  static constexpr kvasir_device_list_reader kTable = {
      sizeof(kvasir_device_list_reader), 0,
      [](void* self, uint64_t n_blocks) noexcept { return as<T>(self).kept_bytes(n_blocks); },
      [](void* self, const kvasir_step* step, const kvasir_attn_in* in,
         const kvasir_attn_lists* lists, kvasir_attn_out* out, kvasir_err* err) noexcept {
        return sdk::guard(err, [&] { as<T>(self).run_with_lists(*step, *in, *lists, *out); });
      },
      [](void* self, uint64_t seq) noexcept {
        sdk::guard(nullptr, [&] { as<T>(self).forget(seq); });
      }};
  return &kTable;
}

}  // namespace kvasir::attention
