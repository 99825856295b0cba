// Sizes of the ABI's structs in version 0.1: the lower bound a plugin's struct_size is checked
// against. They stay when a later minor appends fields; the current sizeof does not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/attention.h>
#include <kvasir/representative.h>
#include <kvasir/selector.h>
#include <kvasir/storage.h>

#include <cstddef>

namespace kvasir::abi_0_1 {

#define KVASIR_REACHES(type, last) (offsetof(type, last) + sizeof(type::last))
inline constexpr size_t kPluginBytes = KVASIR_REACHES(kvasir_plugin, shutdown);
inline constexpr size_t kDescBytes = KVASIR_REACHES(kvasir_desc, dtypes);
inline constexpr size_t kOptionSchemaBytes = KVASIR_REACHES(kvasir_option_schema, max);
inline constexpr size_t kInstanceBytes = KVASIR_REACHES(kvasir_instance, get_extension);
inline constexpr size_t kSelectorBytes = KVASIR_REACHES(kvasir_selector, evict_plan);
inline constexpr size_t kRepresentativeBytes = KVASIR_REACHES(kvasir_representative, score);
inline constexpr size_t kStorageBytes = KVASIR_REACHES(kvasir_storage, cancel);
inline constexpr size_t kAttentionBytes = KVASIR_REACHES(kvasir_attention, mass);
#undef KVASIR_REACHES

}  // namespace kvasir::abi_0_1
