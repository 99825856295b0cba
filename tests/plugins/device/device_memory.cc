// See device_memory.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/device/device_memory.h"

#include <sys/mman.h>

#include <cstring>

namespace kvasir::test {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 28;  // reserved, hardly any of it is ever used

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory memory;
  return memory;
}

DeviceMemory::DeviceMemory()
    : begin_(static_cast<std::byte*>(
          mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (begin_ == MAP_FAILED) throw std::bad_alloc();
}

void DeviceMemory::protect(bool is_open) const {
  mprotect(begin_, kBytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

DeviceMemory::Access::Access() {
  DeviceMemory& memory = instance();
  const std::lock_guard lock(memory.mutex_);
  if (memory.n_open_++ == 0) memory.protect(true);
}

DeviceMemory::Access::~Access() {
  DeviceMemory& memory = instance();
  const std::lock_guard lock(memory.mutex_);
  if (--memory.n_open_ == 0) memory.protect(false);
}

void* DeviceMemory::alloc(uint64_t bytes) {
  const Access access;
  const std::lock_guard lock(mutex_);
  bytes = (bytes + 63) / 64 * 64;
  void* data;
  if (std::vector<void*>& unused = free_[bytes]; !unused.empty()) {
    data = unused.back();
    unused.pop_back();
  } else {
    if (bytes > kBytes - used_) throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY, "the device is full");
    data = begin_ + used_;
    used_ += bytes;
  }
  std::memset(data, 0xff, bytes);
  allocated_[data] = bytes;
  return data;
}

void DeviceMemory::free(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = allocated_.find(data);
  if (found == allocated_.end()) sdk::fail_invalid("this memory is not the device's, or free");
  free_[found->second].push_back(data);
  allocated_.erase(found);
}

bool DeviceMemory::holds(const void* data, uint64_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  return at >= begin_ && at + bytes <= begin_ + kBytes;
}

uint64_t DeviceMemory::size() const { return kBytes; }

uint64_t DeviceMemory::n_allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_.size();
}

}  // namespace kvasir::test
