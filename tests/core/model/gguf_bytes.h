// GGUF bytes put together by hand, so that tests can make what the writer would refuse to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::test {

class Bytes {
 public:
  Bytes& u8(uint32_t v) { return little_endian(v, 1); }
  Bytes& u16(uint32_t v) { return little_endian(v, 2); }
  Bytes& u32(uint32_t v) { return little_endian(v, 4); }
  Bytes& u64(uint64_t v) { return little_endian(v, 8); }
  Bytes& f64(double v) {
    uint64_t bits;
    static_assert(sizeof bits == sizeof v);
    __builtin_memcpy(&bits, &v, sizeof bits);
    return u64(bits);
  }
  Bytes& text(const std::string& s) {
    u64(s.size());
    bytes_ += s;
    return *this;
  }
  Bytes& pad(uint64_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_ += '\0';
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  Bytes& little_endian(uint64_t v, int n) {
    for (int i = 0; i < n; ++i) bytes_ += static_cast<char>(v >> 8 * i & 255);
    return *this;
  }
  std::string bytes_;
};

inline Bytes gguf_head(uint32_t version, uint64_t n_tensors, uint64_t n_metadata) {
  Bytes b;
  b.u8('G').u8('G').u8('U').u8('F').u32(version).u64(n_tensors).u64(n_metadata);
  return b;
}

}  // namespace kvasir::test
