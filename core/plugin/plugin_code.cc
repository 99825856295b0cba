// See plugin_code.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/plugin_code.h"

#include <link.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

namespace kvasir {
namespace {

// Entries are written once, then counted: whoever sees the count sees them. Files beyond the last
// are not named.
std::array<PluginCode, 256> codes;
std::atomic<size_t> n_codes{0};
std::mutex writers;

// The executable segment that holds an address.
struct Search {
  uintptr_t address, begin = 0, end = 0;
};

int look(dl_phdr_info* object, size_t, void* search_) {
  auto& search = *static_cast<Search*>(search_);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
    if (segment.p_type != PT_LOAD || search.address < begin || search.address >= end) continue;
    search.begin = begin;
    search.end = end;
    return 1;
  }
  return 0;
}

}  // namespace

void remember_plugin_code(const void* entry, const std::string& plugin, const std::string& path) {
  Search search{reinterpret_cast<uintptr_t>(entry)};
  if (dl_iterate_phdr(look, &search) == 0) return;
  const std::lock_guard lock(writers);
  const size_t n = n_codes.load(std::memory_order_relaxed);
  if (n == codes.size() || plugin_code_at(search.begin)) return;
  codes[n] = {search.begin, search.end, strdup(plugin.c_str()), strdup(path.c_str())};
  n_codes.store(n + 1, std::memory_order_release);
}

const PluginCode* plugin_code_at(uintptr_t address) {
  const size_t n = n_codes.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; ++i)
    if (address >= codes[i].begin && address < codes[i].end) return &codes[i];
  return nullptr;
}

}  // namespace kvasir
