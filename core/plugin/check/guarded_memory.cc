// See guarded_memory.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/check/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

namespace kvasir {
namespace {

constexpr std::byte kUntouched{0xa5};
constexpr size_t kAlignment = 16;  // of every copy, as of memory from malloc()

// Where copies lie, and lay. Written under the mutex; a handler reads entries that are whole, for a
// thread that faults inside one of them is not the one that writes it.
struct Place {
  std::atomic<uintptr_t> begin{0}, end{0};  // of the map
  std::atomic<uintptr_t> data{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<const char*> name{nullptr};
  std::atomic<bool> is_over{false};
};
std::array<Place, 4096> places;
size_t next_place = 0;
std::mutex writers;

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Takes the place of the oldest call that has ended; its memory is given back. All are of calls
// that run: the new one has no name in a crash.
void remember(const char* name, std::byte* map, size_t map_bytes, const std::byte* data,
              size_t bytes) {
  const std::lock_guard lock(writers);
  for (size_t tries = 0; tries < places.size(); ++tries) {
    Place& place = places[next_place];
    next_place = (next_place + 1) % places.size();
    if (place.name && !place.is_over) continue;
    if (place.name) munmap(reinterpret_cast<void*>(place.begin.load()), place.end - place.begin);
    place.begin = reinterpret_cast<uintptr_t>(map);
    place.end = place.begin + map_bytes;
    place.data = reinterpret_cast<uintptr_t>(data);
    place.bytes = bytes;
    place.is_over = false;
    place.name = name;
    return;
  }
}

// False: it has no place, and its memory is to be given back.
bool retire(const std::byte* map) {
  const std::lock_guard lock(writers);
  const auto found = std::find_if(places.begin(), places.end(), [&](const Place& place) {
    return place.name && place.begin == reinterpret_cast<uintptr_t>(map);
  });
  if (found == places.end()) return false;
  found->is_over = true;
  return true;
}

}  // namespace

GuardedMemory::~GuardedMemory() {
  for (const Copy& copy : copies_) {
    mprotect(copy.map, copy.map_bytes, PROT_NONE);
    madvise(copy.map, copy.map_bytes, MADV_DONTNEED);
    if (!retire(copy.map)) munmap(copy.map, copy.map_bytes);
  }
}

std::byte* GuardedMemory::add(const char* name, const void* data, size_t bytes, void* original) {
  const size_t page = page_bytes();
  const size_t inner = round_up(std::max<size_t>(round_up(bytes, kAlignment), 1), page);
  const size_t map_bytes = inner + 2 * page;
  void* const mapped =
      mmap(nullptr, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const map = static_cast<std::byte*>(mapped);
  std::byte* const begin = map + page;
  if (mprotect(begin, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, map_bytes);
    throw std::bad_alloc();
  }
  std::byte* const to = begin + inner - round_up(bytes, kAlignment);
  std::fill(begin, to, kUntouched);
  std::fill(to + bytes, begin + inner, kUntouched);
  std::memcpy(to, data, bytes);
  copies_.push_back({name, map, map_bytes, to, bytes, original});
  remember(name, map, map_bytes, to, bytes);
  if (!original) mprotect(begin, inner, PROT_READ);
  return to;
}

const void* GuardedMemory::add_input(const char* name, const void* data, size_t bytes) {
  return data ? add(name, data, bytes, nullptr) : nullptr;
}

void* GuardedMemory::add_output(const char* name, void* data, size_t bytes) {
  return data ? add(name, data, bytes, data) : nullptr;
}

std::string GuardedMemory::fault_of(const Copy& copy) {
  const size_t page = page_bytes();
  const auto is_touched = [](const std::byte* begin, const std::byte* end) {
    return std::any_of(begin, end, [](std::byte b) { return b != kUntouched; });
  };
  const auto wrote = [&](const char* where) {
    std::string text = "it wrote ";
    text.append(where).append(" '").append(copy.name).append("', which has ");
    return text.append(std::to_string(copy.bytes)).append(" bytes");
  };
  if (is_touched(copy.map + page, copy.data)) return wrote("before");
  if (is_touched(copy.data + copy.bytes, copy.map + copy.map_bytes - page)) return wrote("behind");
  return "";
}

std::string GuardedMemory::finish() {
  std::string fault;
  for (const Copy& copy : copies_) {
    if (!copy.original) continue;
    if (fault.empty()) fault = fault_of(copy);
    std::memcpy(copy.original, copy.data, copy.bytes);
  }
  return fault;
}

GuardedPlace guarded_place_at(uintptr_t address) {
  for (const Place& place : places) {
    const char* const name = place.name;
    if (!name || address < place.begin || address >= place.end) continue;
    GuardedPlace found{name, GuardedPlace::Where::kInside, place.is_over, place.bytes, 0};
    if (address < place.data) {
      found.where = GuardedPlace::Where::kBefore;
      found.distance = place.data - address;
    } else if (address >= place.data + place.bytes) {
      found.where = GuardedPlace::Where::kBehind;
      found.distance = address - (place.data + place.bytes);
    } else {
      found.distance = address - place.data;
    }
    return found;
  }
  return {};
}

}  // namespace kvasir
