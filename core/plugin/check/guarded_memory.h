// Copies of what a plugin is given, each between pages that nobody may touch: a plugin that reads
// or writes beyond them, writes to an input, or keeps a pointer for later ends there, by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

// The copies of one call. An end that is a multiple of 16 touches the page behind it; what lies
// between another end and that page, or before the copy, must stay as it is.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  ~GuardedMemory();  // nobody may touch the copies from now on, for as long as there is room
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // A copy that may only be read. name: static, as it stands in messages ("q"). Null stays null.
  const void* add_input(const char* name, const void* data, size_t bytes);
  // A copy that may be written; finish() copies it back to `data`.
  void* add_output(const char* name, void* data, size_t bytes);
  // Once the call is over: copies back. What was written beside an output ("wrote behind 'index'"),
  // or "".
  std::string finish();

 private:
  struct Copy {
    const char* name;
    std::byte* map;  // with both guard pages
    size_t map_bytes;
    std::byte* data;
    size_t bytes;
    void* original;  // null: an input
  };
  std::byte* add(const char* name, const void* data, size_t bytes, void* original);
  static std::string fault_of(const Copy& copy);

  std::vector<Copy> copies_;
};

// What lies at an address that a signal handler is told.
struct GuardedPlace {
  enum class Where { kNowhere, kBefore, kInside, kBehind };
  const char* name = nullptr;
  Where where = Where::kNowhere;
  bool is_over = false;   // its call has ended
  uint64_t bytes = 0;     // of the copy
  uint64_t distance = 0;  // from its first byte, or its end, to the address
};
// A signal handler may call it.
GuardedPlace guarded_place_at(uintptr_t address);

}  // namespace kvasir
