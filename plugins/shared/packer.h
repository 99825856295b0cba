// Bytes that travel to a device in one copy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvasir::sdk {

// Until their place on the device is known, addresses among the bytes are offsets into them.
class Packer {
 public:
  static constexpr uint64_t kAlignment = 16;

  void clear() {
    bytes_.clear();
    addresses_.clear();
  }
  uint64_t size() const { return bytes_.size(); }
  std::byte* at(uint64_t offset) { return bytes_.data() + offset; }

  // Zero bytes, aligned; returns their offset.
  uint64_t reserve(uint64_t n) {
    const uint64_t offset = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(offset + n);
    return offset;
  }
  uint64_t put(const void* data, uint64_t n) {
    const uint64_t offset = reserve(n);
    if (n != 0) std::memcpy(at(offset), data, n);
    return offset;
  }
  template <class T>
  uint64_t put(const std::vector<T>& values) {
    return put(values.data(), values.size() * sizeof(T));
  }

  // The u64 at this offset is an offset, and is to become an address.
  void is_address(uint64_t offset) { addresses_.push_back(offset); }

  // What to copy to device address `base`. Once.
  std::span<const std::byte> place(uint64_t base) {
    for (const uint64_t offset : addresses_) {
      uint64_t address = 0;
      std::memcpy(&address, at(offset), sizeof address);
      address += base;
      std::memcpy(at(offset), &address, sizeof address);
    }
    addresses_.clear();
    return bytes_;
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<uint64_t> addresses_;
};

}  // namespace kvasir::sdk
