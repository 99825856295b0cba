// The bytes of one GGUF file turned into a checked directory of views: used by gguf.cc only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/gguf/gguf.h"

namespace kvasir::gguf {

enum class ValueType : uint32_t {  // the file format's own numbers
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
inline constexpr uint32_t kMagic = 0x46554747;  // "GGUF", little-endian
inline constexpr uint64_t kDefaultAlignment = 32;

const char* name(ValueType type);
size_t scalar_bytes(ValueType type);  // 0 for strings, arrays and unknown types

// One metadata value: where it lies, fully checked. `count` is 1 for a scalar.
struct MetaEntry {
  std::string_view key;
  ValueType type;           // kArray for arrays, of any depth
  ValueType element;        // of the array; the type itself for a scalar
  uint64_t count;           // elements of the array
  const std::byte* values;  // first element; strings are u64 length + bytes, back to back
  uint64_t n_bytes;         // of all elements
};

struct Directory {
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  std::vector<MetaEntry> metadata;
  std::vector<GgufTensor> tensors;
};

// Parses and checks everything; the views point into `bytes`. `label` is the file's name in errors.
Directory read_directory(std::span<const std::byte> bytes, const std::string& label);

// Unaligned little-endian load (the only byte order that is accepted).
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// At most `limit` bytes of untrusted text, quoted and with control characters escaped.
std::string in_quotes(std::string_view text, size_t limit = 80);

}  // namespace kvasir::gguf
