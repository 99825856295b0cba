// Option schemas as constant data, and the reader of the values the host delivers.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/option.h>
#include <kvasir/sdk/error.h>
#include <kvasir/sdk/strided.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::sdk {

// What every option has; `aliases` is null-terminated static data.
struct OptionText {
  const char* key = nullptr;
  const char* help = nullptr;
  const char* unit = nullptr;
  const char* const* aliases = nullptr;
  uint32_t flags = 0;  // KVASIR_OPTION_REQUIRED …
  const char* group = nullptr;
  const char* with = nullptr;
};

constexpr kvasir_value int_value(int64_t i, uint32_t type = KVASIR_OPTION_INT) {
  return {type, 0, i, 0.0, nullptr, nullptr};
}
constexpr kvasir_value float_value(double f) {
  return {KVASIR_OPTION_FLOAT, 0, 0, f, nullptr, nullptr};
}
inline constexpr kvasir_value kNoBound = {0, 0, 0, 0.0, nullptr, nullptr};

constexpr kvasir_option_schema option(uint32_t type, const OptionText& text, kvasir_value def,
                                      kvasir_value min = kNoBound, kvasir_value max = kNoBound) {
  return {sizeof(kvasir_option_schema),
          type,
          text.flags,
          0,
          text.key,
          text.aliases,
          nullptr,
          text.unit,
          text.help,
          def,
          min,
          max,
          text.group,
          text.with};
}
constexpr kvasir_option_schema bool_option(const OptionText& text, bool def) {
  return option(KVASIR_OPTION_BOOL, text, int_value(def ? 1 : 0, KVASIR_OPTION_BOOL));
}
constexpr kvasir_option_schema int_option(const OptionText& text, int64_t def, int64_t min,
                                          int64_t max) {
  return option(KVASIR_OPTION_INT, text, int_value(def), int_value(min), int_value(max));
}
constexpr kvasir_option_schema float_option(const OptionText& text, double def, double min,
                                            double max) {
  return option(KVASIR_OPTION_FLOAT, text, float_value(def), float_value(min), float_value(max));
}
constexpr kvasir_option_schema bytes_option(const OptionText& text, int64_t def) {
  return option(KVASIR_OPTION_BYTES, text, int_value(def, KVASIR_OPTION_BYTES),
                int_value(0, KVASIR_OPTION_BYTES));
}
template <uint32_t N>
constexpr kvasir_option_schema enum_option(const OptionText& text, const char* const (&names)[N],
                                           int64_t def) {
  auto schema = option(KVASIR_OPTION_ENUM, text, int_value(def, KVASIR_OPTION_ENUM));
  schema.n_enum = N;
  schema.enum_names = names;
  return schema;
}

// The values of one create(): typed, checked against the schema and defaulted by the host.
class Options {
 public:
  Options(const kvasir_option* first, uint32_t n, uint32_t stride_bytes)
      : options_(first, n, stride_bytes) {}

  bool boolean(std::string_view key) const { return get(key, KVASIR_OPTION_BOOL).value.i != 0; }
  double f64(std::string_view key) const { return get(key, KVASIR_OPTION_FLOAT).value.f; }
  uint32_t choice(std::string_view key) const {
    return static_cast<uint32_t>(get(key, KVASIR_OPTION_ENUM).value.i);
  }
  int64_t i64(std::string_view key) const { return get(key, KVASIR_OPTION_INT).value.i; }
  std::string path(std::string_view key) const {
    const char* text = get(key, KVASIR_OPTION_PATH).value.s;
    return text ? text : "";
  }
  uint64_t bytes(std::string_view key) const {
    return static_cast<uint64_t>(get(key, KVASIR_OPTION_BYTES).value.i);
  }
  // An INT whose schema bounds it to 0 .. UINT32_MAX.
  uint32_t u32(std::string_view key) const {
    const int64_t i = get(key, KVASIR_OPTION_INT).value.i;
    if (i < 0 || i > int64_t{UINT32_MAX}) {
      fail_invalid(std::string(key) + " = " + std::to_string(i) + " is not in 0 .. 4294967295");
    }
    return static_cast<uint32_t>(i);
  }
  // Of OPTIONAL options, and of alternatives: exactly one of a group is.
  bool delivered(std::string_view key) const { return find(key) != nullptr; }
  uint32_t u32_or(std::string_view key, uint32_t otherwise) const {
    return delivered(key) ? u32(key) : otherwise;
  }
  bool set_by_user(std::string_view key) const {
    const kvasir_option* found = find(key);
    return found && found->is_set != 0;
  }

 private:
  const kvasir_option* find(std::string_view key) const {
    for (const kvasir_option& option : options_) {
      if (option.key && key == option.key) return &option;
    }
    return nullptr;
  }
  const kvasir_option& get(std::string_view key, uint32_t type) const {
    const kvasir_option* found = find(key);
    if (!found) fail_invalid("option " + std::string(key) + " was not delivered by the host");
    if (found->value.type != type) {
      fail_invalid("option " + std::string(key) + " was delivered with value type " +
                   std::to_string(found->value.type) + ", expected " + std::to_string(type));
    }
    return *found;
  }

  Strided<const kvasir_option> options_;
};

}  // namespace kvasir::sdk
