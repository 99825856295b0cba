// Checks of memory kinds; see memory_kinds.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/memory_kinds.h"

#include <kvasir/ext/draft/device_memory.h>

#include <algorithm>
#include <string>

#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {
namespace {

std::string name_of(uint32_t mem_kind) {
  return is_host_memory(mem_kind) ? "host memory" : "device memory";
}

// "host memory", "device memory", "host and device memory".
std::string kinds_read(const Instance& plugin) {
  if (!plugin.reads(KVASIR_MEM_HOST)) return name_of(KVASIR_MEM_DEVICE);
  return plugin.reads(KVASIR_MEM_DEVICE) ? "host and device memory" : name_of(KVASIR_MEM_HOST);
}

// Whether it reads blocks of this format as copies.
bool reads_copy(const Instance& reader, const kvasir_kv_format& format) {
  return !reader.reads(format.mem_kind) && reader.reads(KVASIR_MEM_HOST);
}

// `kind`: what the reader is, with its article.
void check_keys(const Instance& reader, const std::string& kind, const Storage& storage,
                std::span<const kvasir_kv_format> formats, bool takes_copies = false) {
  for (const kvasir_kv_format& format : formats) {
    if (reader.reads(format.mem_kind) || (takes_copies && reads_copy(reader, format))) continue;
    throw input_error(reader.id() + " reads K and V in " + kinds_read(reader) + "; " +
                      storage.id() + " holds them in " + name_of(format.mem_kind) + ": take " +
                      kind + " that reads " + name_of(format.mem_kind) +
                      ", or a storage that holds blocks in " + kinds_read(reader));
  }
}

// Views are copied to where a plugin works; that needs a device that gives memory.
void check_views(const Instance& plugin, const Storage& storage) {
  if (storage.has_device_memory()) return;
  const bool reads = plugin.reads(KVASIR_MEM_HOST), writes = plugin.writes(KVASIR_MEM_HOST);
  if (reads && writes) return;
  throw input_error(plugin.id() + (reads ? " writes" : " reads") +
                    " device memory only, and storage " + storage.id() +
                    " gives none (it has no " KVASIR_EXT_DEVICE_MEMORY
                    "): take the storage of that device");
}

// Which plugin or setting needs keys that are stored before RoPE.
std::string wisher(const Pipeline& pipeline) {
  for (const auto& selector : pipeline.selectors)
    if (selector->desc().needs & KVASIR_NEED_UNROTATED_K) return selector->id();
  if (pipeline.representative && pipeline.representative->desc().needs & KVASIR_NEED_UNROTATED_K)
    return pipeline.representative->id();
  return pipeline.strategy.cache.positions.origin.text() + ": positions = \"slot\"";
}

}  // namespace

bool reads_keys(const Selector& selector) {
  return selector.desc().needs & KVASIR_NEED_KEYS ||
         (selector.has_update() && selector.desc().dtypes != 0);
}

bool reads_copies(const Instance& reader, std::span<const kvasir_kv_format> formats) {
  if (is_host_memory(formats[0].mem_kind)) return false;
  return std::any_of(formats.begin(), formats.end(),
                     [&](const auto& format) { return reads_copy(reader, format); });
}

bool can_read(const Instance& reader, const kvasir_kv_format& format) {
  const uint64_t read = reader.desc().dtypes;
  const uint64_t held = KVASIR_DTYPE_BIT(format.dtype_k) | KVASIR_DTYPE_BIT(format.dtype_v);
  return reader.reads(format.mem_kind) && (read == 0 || (held & read) == held);
}

void check_hybrid(const Pipeline& pipeline, bool unrotated) {
  if (!pipeline.is_hybrid() || !unrotated) return;
  throw input_error(wisher(pipeline) +
                    " needs keys that are stored before RoPE, and two [[storage]] "
                    "tables (" +
                    pipeline.strategy.window_storage->plugin.origin.text() +
                    ") hold keys after RoPE only: write one [storage] and one [attention]");
}

void check_memory_kinds(const Pipeline& pipeline, std::span<const kvasir_kv_format> formats,
                        std::span<const kvasir_kv_format> window, bool unrotated) {
  const Storage& storage = *pipeline.storage;
  for (const kvasir_kv_format& format : formats)
    if (unrotated && !is_host_memory(format.mem_kind))
      throw input_error(wisher(pipeline) + " needs keys that are stored before RoPE, which the " +
                        "host turns as they are attended; " + storage.id() + " holds them in " +
                        name_of(format.mem_kind) +
                        ": take a storage that holds blocks in host memory, or do without it");
  check_keys(*pipeline.attention, "an attention backend", storage, formats);
  check_views(*pipeline.attention, storage);
  if (pipeline.is_hybrid()) {
    const Storage& newest = *pipeline.window_storage;
    check_keys(*pipeline.window_attention, "an attention backend", newest, window);
    check_views(*pipeline.window_attention, newest);
  }
  // `of`: what the reader is. at_select: also in select().
  const auto check_reader = [&](const Instance& reader, const std::string& of, bool at_select) {
    if (pipeline.is_hybrid()) check_keys(reader, of, *pipeline.window_storage, window, !at_select);
    check_keys(reader, of, storage, formats, !at_select);
  };
  if (pipeline.representative) {
    check_reader(*pipeline.representative, "a representative", false);
    check_views(*pipeline.representative, storage);
  }
  for (const auto& selector : pipeline.selectors) {
    if (reads_keys(*selector))
      check_reader(*selector, "a selector that reads no keys as it chooses, or one",
                   selector->desc().needs & KVASIR_NEED_KEYS);
    check_views(*selector, storage);
  }
}

void check_record_memory(const Instance& owner, const RecordLayout& layout,
                         const Storage& storage) {
  if (is_host_memory(layout.mem_kind) || storage.has_device_memory()) return;
  throw input_error(
      owner.id() + " keeps its records in device memory, and storage " + storage.id() +
      " gives none (it has no " KVASIR_EXT_DEVICE_MEMORY "): take the storage of that device");
}

}  // namespace kvasir
