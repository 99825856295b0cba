// Bytes by the memory in which they lie.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvasir {

// Main memory and a device's, which never stand in for each other. A number alone is main memory.
struct MemoryBytes {
  uint64_t main = 0, device = 0;

  constexpr MemoryBytes(uint64_t main_in = 0, uint64_t device_in = 0)
      : main(main_in), device(device_in) {}
  static constexpr MemoryBytes unlimited() { return {UINT64_MAX, UINT64_MAX}; }

  uint64_t total() const { return main + device; }
  bool fits(const MemoryBytes& there) const { return main <= there.main && device <= there.device; }
  friend bool operator==(const MemoryBytes&, const MemoryBytes&) = default;
  friend MemoryBytes operator+(const MemoryBytes& a, const MemoryBytes& b) {
    return {a.main + b.main, a.device + b.device};
  }
  // Of each what is left of `a` beside `b`, 0 at least.
  friend MemoryBytes operator-(const MemoryBytes& a, const MemoryBytes& b) {
    return {a.main - std::min(a.main, b.main), a.device - std::min(a.device, b.device)};
  }
  friend MemoryBytes operator*(uint64_t n, const MemoryBytes& a) {
    return {n * a.main, n * a.device};
  }
  MemoryBytes& operator+=(const MemoryBytes& b) { return *this = *this + b; }
  // The larger one of each.
  friend MemoryBytes largest(const MemoryBytes& a, const MemoryBytes& b) {
    return {std::max(a.main, b.main), std::max(a.device, b.device)};
  }
};

}  // namespace kvasir
