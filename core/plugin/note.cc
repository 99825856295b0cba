// ELF64 by hand, because nothing in the file is trusted: every offset and size is checked against
// the file before it is used, and only headers and note segments are read.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/note.h"

#include <elf.h>
#include <fcntl.h>
#include <kvasir/entry.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

namespace kvasir {
namespace {

constexpr uint64_t kMaxNoteBytes = 1u << 20;
constexpr uint16_t kMaxHeaders = 4096;
#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
#error "unknown machine: add its ELF number"
#endif

// A regular file of known size, read piecewise; closes itself.
class File {
 public:
  explicit File(const std::string& path) {
    // Non-blocking: a FIFO named .so must not hang the scan.
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info {};
    if (fd_ < 0 || fstat(fd_, &info) != 0) {
      problem_ =
          errno == ENOENT ? "not found" : std::string("cannot be opened: ") + std::strerror(errno);
    } else if (S_ISDIR(info.st_mode)) {
      problem_ = "is a directory, not a plugin file";
    } else if (!S_ISREG(info.st_mode)) {
      problem_ = "is not a regular file";
    } else {
      size_ = static_cast<uint64_t>(info.st_size);
    }
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& problem() const { return problem_; }  // of opening it, or of a read()
  uint64_t size() const { return size_; }

  // False when the range is not wholly inside the file.
  bool read(uint64_t offset, uint64_t bytes, void* out) const {
    if (offset > size_ || bytes > size_ - offset) return false;
    auto* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t n = pread(fd_, to, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) problem_ = std::string("cannot be read: ") + std::strerror(errno);
      if (n <= 0) return false;
      to += n;
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<uint64_t>(n);
    }
    return true;
  }

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
  mutable std::string problem_;
};

uint32_t load_u32(const std::vector<char>& bytes, size_t offset) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// The descriptor of the first Kvasir note in a note segment, or nothing.
std::optional<std::vector<char>> find_in_notes(const std::vector<char>& notes, uint64_t alignment) {
  constexpr uint64_t kHeader = 12;
  uint64_t at = 0;
  while (notes.size() - at >= kHeader) {
    const uint64_t name_bytes = load_u32(notes, at);
    const uint64_t desc_bytes = load_u32(notes, at + 4);
    const uint32_t type = load_u32(notes, at + 8);
    const uint64_t desc = align_up(at + kHeader + name_bytes, alignment);
    if (desc > notes.size() || desc_bytes > notes.size() - desc) return std::nullopt;
    constexpr char kName[8] = KVASIR_NOTE_NAME;
    if (type == KVASIR_NOTE_TYPE && name_bytes == sizeof(kName) &&
        std::memcmp(notes.data() + at + kHeader, kName, sizeof(kName)) == 0) {
      const auto begin = notes.begin() + static_cast<ptrdiff_t>(desc);
      return std::vector<char>(begin, begin + static_cast<ptrdiff_t>(desc_bytes));
    }
    at = align_up(desc + desc_bytes, alignment);
    if (at > notes.size()) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::vector<char>> read_notes(const File& file, uint64_t offset, uint64_t bytes,
                                            uint64_t alignment) {
  if (bytes > kMaxNoteBytes) return std::nullopt;
  std::vector<char> notes(bytes);
  if (!file.read(offset, bytes, notes.data())) return std::nullopt;
  return find_in_notes(notes, alignment == 8 ? 8 : 4);
}

// Program headers first: what the loader maps. Section headers are the second chance, for files
// whose linker made no note segment.
std::optional<std::vector<char>> find_note(const File& file, const Elf64_Ehdr& elf) {
  for (uint16_t i = 0; i < std::min(elf.e_phnum, kMaxHeaders); ++i) {
    Elf64_Phdr segment;
    if (elf.e_phentsize != sizeof(segment) || elf.e_phoff > file.size()) break;
    if (!file.read(elf.e_phoff + uint64_t{i} * sizeof(segment), sizeof(segment), &segment)) break;
    if (segment.p_type != PT_NOTE) continue;
    if (auto desc = read_notes(file, segment.p_offset, segment.p_filesz, segment.p_align)) {
      return desc;
    }
  }
  for (uint16_t i = 0; i < std::min(elf.e_shnum, kMaxHeaders); ++i) {
    Elf64_Shdr section;
    if (elf.e_shentsize != sizeof(section) || elf.e_shoff > file.size()) break;
    if (!file.read(elf.e_shoff + uint64_t{i} * sizeof(section), sizeof(section), &section)) break;
    if (section.sh_type != SHT_NOTE) continue;
    if (auto desc = read_notes(file, section.sh_offset, section.sh_size, section.sh_addralign)) {
      return desc;
    }
  }
  return std::nullopt;
}

std::string check_elf(const File& file, Elf64_Ehdr& elf) {
  if (file.size() == 0) return "is empty";
  char magic[SELFMAG] = {};
  if (!file.read(0, sizeof(magic), magic) || std::memcmp(magic, ELFMAG, SELFMAG) != 0) {
    return "is not an ELF shared object";
  }
  if (!file.read(0, sizeof(elf), &elf)) return "is a truncated ELF file";
  if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_ident[EI_DATA] != ELFDATA2LSB) {
    return std::string("is an ELF file of another class (32-bit or big-endian); this host is ") +
           kMachineName + " and needs a 64-bit little-endian one: rebuild it for this machine";
  }
  if (elf.e_machine != kMachine) {
    return "is built for another machine (ELF machine " + std::to_string(elf.e_machine) +
           "); this host is " + kMachineName + ": rebuild it for this machine";
  }
  if (elf.e_type != ET_DYN) return "is an ELF file, but not a shared object";
  const bool reaches = elf.e_shoff <= file.size() &&
                       uint64_t{elf.e_shnum} * sizeof(Elf64_Shdr) <= file.size() - elf.e_shoff;
  if (elf.e_shnum != 0 && elf.e_shentsize == sizeof(Elf64_Shdr) && !reaches) {
    return "is a truncated ELF file: copy it again";
  }
  return {};
}

bool is_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// NUL-separated, ended by an empty one; false when the end is missing or a character is odd.
bool split_list(const char* text, size_t bytes, bool is_id, std::vector<std::string>& out) {
  size_t at = 0;
  while (at < bytes && text[at] != '\0') {
    const size_t length = strnlen(text + at, bytes - at);
    if (length == bytes - at) return false;
    out.emplace_back(text + at, length);
    const std::string& item = out.back();
    const auto bad = [&](char c) { return !is_id_character(c) && (is_id || c != '/'); };
    if (std::any_of(item.begin(), item.end(), bad)) return false;
    at += length + 1;
  }
  return at < bytes;
}

std::string parse_note(const std::vector<char>& desc, PluginNote& note) {
  constexpr size_t kDescBytes = sizeof(kvasir_note) - offsetof(kvasir_note, abi_major);
  if (desc.size() < sizeof(uint32_t)) return "has a damaged Kvasir note: rebuild it";
  note.abi_major = load_u32(desc, 0);
  if (note.abi_major != KVASIR_ABI_MAJOR) return {};
  if (desc.size() < kDescBytes) return "has a Kvasir note that is too short: rebuild it";
  kvasir_note raw{};
  std::memcpy(&raw.abi_major, desc.data(), kDescBytes);
  note.abi_minor = raw.abi_minor;
  note.required_minor = raw.required_minor;
  note.kinds = raw.kinds;
  note.cpu_features = raw.cpu_features;
  note.version.assign(raw.version, strnlen(raw.version, sizeof(raw.version)));
  const auto is_odd = [](char c) { return c < 0x21 || c > 0x7e; };
  if (note.version.size() == sizeof(raw.version) || note.version.empty() ||
      std::any_of(note.version.begin(), note.version.end(), is_odd)) {
    note.version.clear();
    return "has a Kvasir note with a damaged version: rebuild it";
  }
  if (!split_list(raw.ids, sizeof(raw.ids), true, note.ids) || note.ids.empty()) {
    note.ids.clear();
    return "has a Kvasir note with a damaged list of plugin ids: rebuild it";
  }
  if (!split_list(raw.drafts, sizeof(raw.drafts), false, note.drafts)) {
    note.drafts.clear();
    return "has a Kvasir note with a damaged list of draft extensions: rebuild it";
  }
  return {};
}

}  // namespace

std::string read_plugin_note(const std::string& path, PluginNote& note) {
  const File file(path);
  if (!file.problem().empty()) return file.problem();
  Elf64_Ehdr elf{};
  const std::string problem = check_elf(file, elf);
  const auto desc = problem.empty() ? find_note(file, elf) : std::nullopt;
  if (!file.problem().empty()) return file.problem();
  if (!problem.empty()) return problem;
  if (!desc) {
    return "has no Kvasir note: it is not a Kvasir plugin, or was built without "
           "KVASIR_PLUGIN_NOTE";
  }
  return parse_note(*desc, note);
}

}  // namespace kvasir
