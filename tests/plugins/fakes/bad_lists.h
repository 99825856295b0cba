// How bad_selector goes wrong, and what that does to lists that were right.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/selector.h>

#include <cstdint>
#include <string_view>

namespace kvasir::test {

inline constexpr const char* kListFaults[] = {"none",
                                              "out_of_range",
                                              "unsorted",
                                              "duplicate",
                                              "too_many",
                                              "nan_weight",
                                              "inf_weight",
                                              "error",
                                              "error_no_text",
                                              "fallback",
                                              "again",
                                              "capacity_for_ever",
                                              "unknown_status",
                                              "lists_missing",
                                              "offsets_descend",
                                              "unknown_list_flag",
                                              "finer_scope",
                                              "bytes_read",
                                              "offsets_unwritten",
                                              "index_unwritten",
                                              "listed_all",
                                              "unit_changed"};

// Those that are not in a status, in the indices or in their flags.
inline void spoil_lists(std::string_view fault, uint64_t n_indices, kvasir_selection& out) {
  if (fault == "bytes_read") out.bytes_read = UINT64_MAX;
  if (fault == "unit_changed") out.unit = 1 - out.unit;
  if (fault == "finer_scope") out.scope = KVASIR_SCOPE_Q_HEAD;
  if (fault == "offsets_descend") out.list_offsets[0] = n_indices + 1;
  if (fault == "too_many") out.list_offsets[out.n_lists] = out.capacity + 1;
  if (fault == "lists_missing") out.n_lists -= 1;
}

}  // namespace kvasir::test
