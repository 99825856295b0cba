// How far the plugin's structs must reach at least: to the last field that no plugin can do
// without. What comes behind it may be missing, in a plugin that was built before it came as in one
// that has no use for it; it reads as zero.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/attention.h>
#include <kvasir/representative.h>
#include <kvasir/selector.h>
#include <kvasir/storage.h>

#include <cstddef>

namespace kvasir::abi_least {

#define KVASIR_REACHES(type, last) (offsetof(type, last) + sizeof(type::last))
inline constexpr size_t kPluginBytes = KVASIR_REACHES(kvasir_plugin, create);
inline constexpr size_t kDescBytes = KVASIR_REACHES(kvasir_desc, mem_kinds_write);
inline constexpr size_t kOptionSchemaBytes = KVASIR_REACHES(kvasir_option_schema, max);
inline constexpr size_t kInstanceBytes = KVASIR_REACHES(kvasir_instance, get_extension);
inline constexpr size_t kSelectorBytes = KVASIR_REACHES(kvasir_selector, limits);
inline constexpr size_t kRepresentativeBytes = KVASIR_REACHES(kvasir_representative, score);
inline constexpr size_t kStorageBytes = KVASIR_REACHES(kvasir_storage, drop);
inline constexpr size_t kAttentionBytes = KVASIR_REACHES(kvasir_attention, run);
#undef KVASIR_REACHES

}  // namespace kvasir::abi_least
