// See pinned.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/pinned.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/cuda/emulation/fault.h"

namespace kvasir::cuda::emulation {
namespace {

struct Copy {
  std::byte* host;
  std::vector<std::byte> bytes;
  bool to_host;
};
struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, uint64_t> arrays;  // bytes, by the first one
  std::vector<Copy> copies;                     // in their order
};
Pinned& pinned() {
  static Pinned all;
  return all;
}

// Whether what it read is what is there now.
bool end(const Copy& copy) {
  if (!copy.to_host) return std::memcmp(copy.host, copy.bytes.data(), copy.bytes.size()) == 0;
  std::memcpy(copy.host, copy.bytes.data(), copy.bytes.size());
  return true;
}

void end_all(Pinned& all) {
  bool is_right = true;
  for (const Copy& copy : all.copies) is_right = end(copy) && is_right;
  all.copies.clear();
  if (!is_right)
    throw Fault(FaultKind::kRace,
                "pinned memory was changed before its copy to the device had been waited for");
}

void add(Pinned& all, void* host, const void* bytes_now, uint64_t bytes, bool to_host) {
  const auto* from = static_cast<const std::byte*>(bytes_now);
  all.copies.push_back({static_cast<std::byte*>(host), {from, from + bytes}, to_host});
}

}  // namespace

void pin(void* data, uint64_t bytes) {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  all.arrays[static_cast<std::byte*>(data)] = bytes;
}

void unpin(void* data) {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  if (all.arrays.erase(static_cast<std::byte*>(data)) == 0)
    throw Fault(FaultKind::kBounds, "memory is unpinned that is not pinned");
  for (const Copy& copy : all.copies) end(copy);  // of a step that was given up, perhaps
  all.copies.clear();
}

bool is_pinned(const void* data, uint64_t bytes) {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  const auto* first = static_cast<const std::byte*>(data);
  auto found = all.arrays.upper_bound(first);
  if (found == all.arrays.begin()) return false;
  --found;
  return first + bytes <= found->first + found->second;
}

uint64_t n_pinned() {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  return all.arrays.size();
}

void begin_copy_from(const void* host, uint64_t bytes) {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  add(all, const_cast<void*>(host), host, bytes, false);
}

void begin_copy_to(void* host, const void* bytes_now, uint64_t bytes) {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  const auto* begin = static_cast<std::byte*>(host);
  // What the stream reads there first it may overwrite then.
  const bool is_read = std::any_of(all.copies.begin(), all.copies.end(), [&](const Copy& copy) {
    return !copy.to_host && copy.host < begin + bytes && begin < copy.host + copy.bytes.size();
  });
  if (is_read) end_all(all);
  add(all, host, bytes_now, bytes, true);
  std::memset(host, 0xff, bytes);
}

void end_copies() {
  Pinned& all = pinned();
  const std::lock_guard lock(all.mutex);
  end_all(all);
}

}  // namespace kvasir::cuda::emulation
