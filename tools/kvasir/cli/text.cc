// Formatting; see text.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/text.h"

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstdlib>
#include <limits>

#include "core/error.h"

namespace kvasir::tool {
namespace {

// Columns a terminal needs: one per character.
size_t width(const std::string& cell) {
  return static_cast<size_t>(
      std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string format(const char* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int n = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

Table::Table(std::vector<std::string> header, std::vector<size_t> right)
    : rows_{std::move(header)}, right_(std::move(right)) {}

void Table::add(std::vector<std::string> row) {
  row.resize(rows_[0].size());
  rows_.push_back(std::move(row));
}

std::string Table::text(const std::string& indent) const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - width(row[i]), ' ');
      const bool is_right = std::find(right_.begin(), right_.end(), i) != right_.end();
      line += (i ? "  " : "") + (is_right ? pad + row[i] : row[i] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void print_json(const nlohmann::ordered_json& document) {
  const std::string text =
      document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string gigabytes(uint64_t bytes) { return format("%.2f", static_cast<double>(bytes) / 1e9); }

std::string bytes_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1000000000) return format("%.2f GB", value / 1e9);
  if (bytes >= 1000000) return format("%.1f MB", value / 1e6);
  if (bytes >= 1000) return format("%.1f kB", value / 1e3);
  return std::to_string(bytes) + " B";
}

double plain(float value) {
  return std::strtod(format("%.7g", static_cast<double>(value)).c_str(), nullptr);
}

uint64_t parse_count(const std::string& text, const std::string& flag) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const std::string suffix(parsed.ptr, end);
  uint64_t unit = 0;
  if (suffix.empty()) unit = 1;
  if (suffix == "k" || suffix == "K") unit = 1024;
  if (suffix == "m" || suffix == "M") unit = uint64_t{1024} * 1024;
  if (parsed.ec != std::errc() || unit == 0 || value > std::numeric_limits<uint32_t>::max() / unit)
    throw input_error(flag + " " + text + ": expected a number of tokens, as 4096, 32K or 1M");
  return value * unit;
}

std::vector<uint32_t> parse_counts(const std::string& list, const std::string& flag) {
  std::vector<uint32_t> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const uint64_t count = parse_count(list.substr(begin, end - begin), flag);
    if (count == 0) throw input_error(flag + " " + list + ": must be above 0");
    out.push_back(static_cast<uint32_t>(count));
    begin = end + 1;
  }
  return out;
}

std::vector<TokenId> parse_token_ids(std::string_view list, const std::string& flag) {
  constexpr std::string_view kBetween = ", \t\r\n";
  std::vector<TokenId> ids;
  for (size_t at = list.find_first_not_of(kBetween); at != list.npos;
       at = list.find_first_not_of(kBetween, at)) {
    const size_t end = std::min(list.find_first_of(kBetween, at), list.size());
    TokenId id = 0;
    const auto parsed = std::from_chars(list.data() + at, list.data() + end, id);
    if (parsed.ec != std::errc() || parsed.ptr != list.data() + end || id < 0)
      throw input_error(flag + ": '" +
                        std::string(list.substr(at, std::min<size_t>(end - at, 40))) +
                        "' is no token id; expected numbers separated by commas");
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) out.append(out.empty() ? "" : separator).append(part);
  return out;
}

}  // namespace kvasir::tool
