// The kernel's small text files: one number, one line, "key value" tables. Absent is an answer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// The number a text begins with, after blanks; empty for "max", "-1" and whatever else is none.
inline std::optional<uint64_t> parse_number(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

// The first line; empty when there is no such file.
inline std::string read_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

inline std::optional<uint64_t> read_number(const std::filesystem::path& path) {
  return parse_number(read_line(path));
}

// The number behind `key` at the start of a line and a colon or blank: "MemTotal:  24 kB".
inline std::optional<uint64_t> read_key(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key) || line.size() == key.size()) continue;
    const char after = line[key.size()];
    if (after != ':' && after != ' ' && after != '\t') continue;
    return parse_number(std::string_view(line).substr(key.size() + 1));
  }
  return std::nullopt;
}

}  // namespace kvasir
