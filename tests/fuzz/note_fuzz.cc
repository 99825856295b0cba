// libFuzzer over the note of a plugin file: any bytes give a whole note or a reason. Seeds: the
// smallest shared objects that carry one, in a segment and in a section.
// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <kvasir/entry.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/plugin/note.h"
#include "tests/fuzz/seeds.h"

namespace {

void append(std::string& bytes, const void* data, size_t n) {
  bytes.append(static_cast<const char*>(data), n);
}

kvasir_note note() {
  kvasir_note out{};
  out.namesz = sizeof(out.name);
  out.descsz = sizeof(out) - offsetof(kvasir_note, abi_major);
  out.type = KVASIR_NOTE_TYPE;
  const char name[sizeof(out.name)] = KVASIR_NOTE_NAME;
  std::memcpy(out.name, name, sizeof(name));
  out.abi_major = KVASIR_ABI_MAJOR;
  out.kinds = 1;
  std::strcpy(out.version, "1.2.3");
  std::memcpy(out.ids, "org.a\0org.b", 12);
  std::memcpy(out.drafts, "kvasir.draft.x/1", 17);
  return out;
}

Elf64_Ehdr header() {
  Elf64_Ehdr out{};
  std::memcpy(out.e_ident, ELFMAG, SELFMAG);
  out.e_ident[EI_CLASS] = ELFCLASS64;
  out.e_ident[EI_DATA] = ELFDATA2LSB;
  out.e_type = ET_DYN;
  out.e_machine = EM_X86_64;
#if defined(__aarch64__)
  out.e_machine = EM_AARCH64;
#endif
  return out;
}

// Behind a note of somebody else, as linkers put their build id first.
std::string notes() {
  const uint32_t other[] = {4, 8, 3, 0x554e47, 1, 2};
  const kvasir_note ours = note();
  std::string out;
  append(out, other, sizeof(other));
  append(out, &ours, sizeof(ours));
  return out;
}

std::string with_segment() {
  Elf64_Ehdr elf = header();
  elf.e_phoff = sizeof(elf);
  elf.e_phentsize = sizeof(Elf64_Phdr);
  elf.e_phnum = 1;
  Elf64_Phdr segment{};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof(elf) + sizeof(segment);
  segment.p_filesz = notes().size();
  segment.p_align = 4;
  std::string out;
  append(out, &elf, sizeof(elf));
  append(out, &segment, sizeof(segment));
  return out + notes();
}

std::string with_section() {
  Elf64_Ehdr elf = header();
  elf.e_shoff = sizeof(elf);
  elf.e_shentsize = sizeof(Elf64_Shdr);
  elf.e_shnum = 1;
  Elf64_Shdr section{};
  section.sh_type = SHT_NOTE;
  section.sh_offset = sizeof(elf) + sizeof(section);
  section.sh_size = notes().size();
  section.sh_addralign = 8;
  std::string out;
  append(out, &elf, sizeof(elf));
  append(out, &section, sizeof(section));
  return out + notes();
}

// One file for the whole run; a path leads to it.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string hold(const uint8_t* data, size_t size) const {
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

}  // namespace

std::vector<kvasir::fuzz::Seed> kvasir::fuzz::seeds() {
  return {{"segment", with_segment()}, {"section", with_section()}};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  kvasir::PluginNote note;
  const std::string problem = kvasir::read_plugin_note(file.hold(data, size), note);
  const bool is_ours = problem.empty() && note.abi_major == KVASIR_ABI_MAJOR;
  if (is_ours && (note.ids.empty() || note.version.empty())) std::abort();
  return 0;
}
