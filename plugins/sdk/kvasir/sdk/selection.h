// Writing what a selector chose into the host's buffers.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/step.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvasir::sdk {

// Lays out n_lists lists of count(i) indices each and marks them LISTED. When they do not fit,
// throws KVASIR_ERR_CAPACITY with out.needed written and nothing else changed: the host comes
// again.
template <class Count>
void lay_out_lists(kvasir_selection& out, uint32_t scope, uint32_t n_lists, Count&& count) {
  uint64_t needed = 0;
  for (uint32_t i = 0; i < n_lists; ++i) needed += count(i);
  if (needed > out.capacity) {
    out.needed = needed;
    throw Error(KVASIR_ERR_CAPACITY, "selection needs space for " + std::to_string(needed) +
                                         " indices, the buffer has " +
                                         std::to_string(out.capacity));
  }
  out.scope = scope;
  out.n_lists = n_lists;
  out.list_offsets[0] = 0;
  for (uint32_t i = 0; i < n_lists; ++i) out.list_offsets[i + 1] = out.list_offsets[i] + count(i);
  std::fill_n(out.list_flags, n_lists, KVASIR_LIST_LISTED);
}

// For select() and speculate(): what choosing read of the cached tokens.
inline void say_read(kvasir_selection& out, uint64_t bytes) {
  const bool has_field = out.struct_size >= offsetof(kvasir_selection, bytes_read) + sizeof(bytes);
  if (has_field) out.bytes_read = bytes;
}

inline std::span<uint32_t> list_indices(const kvasir_selection& out, uint32_t i) {
  return {out.index + out.list_offsets[i], out.index + out.list_offsets[i + 1]};
}

// Copies the lists.
inline void write_lists(kvasir_selection& out, uint32_t scope,
                        std::span<const std::vector<uint32_t>> lists) {
  const auto n_lists = static_cast<uint32_t>(lists.size());
  lay_out_lists(out, scope, n_lists, [&](uint32_t i) { return lists[i].size(); });
  for (uint32_t i = 0; i < n_lists; ++i)
    std::copy(lists[i].begin(), lists[i].end(), list_indices(out, i).begin());
}

// n_lists lists that name nothing and all carry `flag` (KVASIR_LIST_ALL, KVASIR_LIST_NONE).
inline void flag_lists(kvasir_selection& out, uint32_t scope, uint32_t n_lists, uint32_t flag) {
  lay_out_lists(out, scope, n_lists, [](uint32_t) { return uint64_t{0}; });
  std::fill_n(out.list_flags, n_lists, flag);
}

}  // namespace kvasir::sdk
