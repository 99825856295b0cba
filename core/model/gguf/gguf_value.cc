// Decoding and describing single metadata values.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/gguf/gguf_value.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/error.h"

namespace kvasir::gguf {
namespace {

std::string_view read_string(const std::byte*& at) {
  const auto n = load<uint64_t>(at);
  const std::string_view text(reinterpret_cast<const char*>(at + sizeof n), n);
  at += sizeof n + n;
  return text;
}

}  // namespace

Scalar read_scalar(ValueType type, const std::byte*& at) {
  if (type == ValueType::kString) return read_string(at);
  const std::byte* p = at;
  at += scalar_bytes(type);
  switch (type) {
    case ValueType::kU8:
      return uint64_t{load<uint8_t>(p)};
    case ValueType::kU16:
      return uint64_t{load<uint16_t>(p)};
    case ValueType::kU32:
      return uint64_t{load<uint32_t>(p)};
    case ValueType::kU64:
      return load<uint64_t>(p);
    case ValueType::kI8:
      return int64_t{load<int8_t>(p)};
    case ValueType::kI16:
      return int64_t{load<int16_t>(p)};
    case ValueType::kI32:
      return int64_t{load<int32_t>(p)};
    case ValueType::kI64:
      return load<int64_t>(p);
    case ValueType::kF32:
      return double{load<float>(p)};
    case ValueType::kF64:
      return load<double>(p);
    default:
      return load<uint8_t>(p) != 0;
  }
}

std::string text_of(const Scalar& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return std::to_string(*i);
  if (const auto* u = std::get_if<uint64_t>(&value)) return std::to_string(*u);
  if (const auto* s = std::get_if<std::string_view>(&value)) return in_quotes(*s, 60);
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.9g", std::get<double>(value));
  return buffer.data();
}

std::string describe(const MetaEntry& entry) {
  constexpr uint64_t kShown = 4;
  const std::byte* at = entry.values;
  if (entry.type != ValueType::kArray) return text_of(read_scalar(entry.type, at));
  std::string out = std::to_string(entry.count) + " x " + name(entry.element);
  if (entry.element == ValueType::kArray) return out;
  out += " [";
  for (uint64_t i = 0; i < std::min(entry.count, kShown); ++i)
    out += (i ? ", " : "") + text_of(read_scalar(entry.element, at));
  return out + (entry.count > kShown ? ", ...]" : "]");
}

void fail_conversion(const MetaEntry& entry, const std::string& found, const char* wanted,
                     const std::string& path) {
  throw input_error(path + ": metadata key " + in_quotes(entry.key) + " must be " + wanted +
                    ", but it holds " + found + "; the file is damaged or of an unknown kind");
}

}  // namespace kvasir::gguf
