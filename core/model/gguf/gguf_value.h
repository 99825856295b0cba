// Metadata values as C++ values, with the conversions GgufFile promises: used by gguf.cc only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/model/gguf/gguf_format.h"

namespace kvasir::gguf {

using Scalar = std::variant<bool, int64_t, uint64_t, double, std::string_view>;

// The value at `at`, which moves past it. Not for arrays.
Scalar read_scalar(ValueType type, const std::byte*& at);
std::string text_of(const Scalar& value);
// "32 x f32 [0.5, 1, ...]" for arrays.
std::string describe(const MetaEntry& entry);

// Throws what a caller who wanted `wanted` must know.
[[noreturn]] void fail_conversion(const MetaEntry& entry, const std::string& found,
                                  const char* wanted, const std::string& path);

// Integers convert where the value fits, any number converts to float; nothing else converts.
template <class T>
std::optional<T> convert(const Scalar& value) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string_view>) {
    const T* same = std::get_if<T>(&value);
    return same ? std::optional<T>(*same) : std::nullopt;
  } else if constexpr (std::is_same_v<T, float>) {
    if (const auto* d = std::get_if<double>(&value)) return static_cast<float>(*d);
    if (const auto* i = std::get_if<int64_t>(&value)) return static_cast<float>(*i);
    if (const auto* u = std::get_if<uint64_t>(&value)) return static_cast<float>(*u);
    return std::nullopt;
  } else {
    if (const auto* i = std::get_if<int64_t>(&value); i && std::in_range<T>(*i))
      return static_cast<T>(*i);
    if (const auto* u = std::get_if<uint64_t>(&value); u && std::in_range<T>(*u))
      return static_cast<T>(*u);
    return std::nullopt;
  }
}

template <class T>
constexpr const char* wanted_name() {
  if constexpr (std::is_same_v<T, bool>) return "a bool";
  if constexpr (std::is_same_v<T, uint32_t>) return "an unsigned 32-bit integer";
  if constexpr (std::is_same_v<T, int32_t>) return "a signed 32-bit integer";
  if constexpr (std::is_same_v<T, uint64_t>) return "an unsigned 64-bit integer";
  if constexpr (std::is_same_v<T, float>) return "a number";
  if constexpr (std::is_same_v<T, std::string_view>) return "a string";
}

// One element of `entry` at `at`, which moves past it.
template <class T>
T read_as(const MetaEntry& entry, const std::byte*& at, const std::string& path) {
  const Scalar value = read_scalar(entry.element, at);
  if (const auto converted = convert<T>(value)) return *converted;
  fail_conversion(entry, text_of(value) + " (" + name(entry.element) + ")", wanted_name<T>(), path);
}

}  // namespace kvasir::gguf
