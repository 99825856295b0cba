// Build IDs from the notes of loaded objects.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvasir {
namespace {

struct Search {
  uintptr_t address;
  std::string found = {};
};

bool holds(const dl_phdr_info& object, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= begin && address - begin < segment.p_memsz)
      return true;
  }
  return false;
}

std::string hex(const unsigned char* bytes, size_t n) {
  std::string out;
  char digits[3];
  for (size_t i = 0; i < n; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    out += digits;
  }
  return out;
}

// Notes one after another: header, name, description, each padded to 4 bytes.
std::string build_id_in(const unsigned char* notes, size_t n_bytes) {
  const auto padded = [](size_t n) { return (n + 3) / 4 * 4; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= n_bytes;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, text = name + padded(note.n_namesz);
    if (text + note.n_descsz > n_bytes) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0)
      return hex(notes + text, note.n_descsz);
    at = text + padded(note.n_descsz);
  }
  return "";
}

int look(dl_phdr_info* object, size_t, void* search_at) {
  auto& search = *static_cast<Search*>(search_at);
  if (!holds(*object, search.address)) return 0;
  for (int i = 0; i < object->dlpi_phnum && search.found.empty(); ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_NOTE)
      search.found =
          build_id_in(reinterpret_cast<const unsigned char*>(object->dlpi_addr + segment.p_vaddr),
                      segment.p_memsz);
  }
  return 1;
}

}  // namespace

std::string build_id_of(const void* address) {
  Search search{reinterpret_cast<uintptr_t>(address)};
  dl_iterate_phdr(look, &search);
  return search.found;
}

}  // namespace kvasir
