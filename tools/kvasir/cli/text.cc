// See text.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdlib>

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

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  return widths;
}

bool Table::is_right(size_t column) const {
  return std::find(right_.begin(), right_.end(), column) != right_.end();
}

std::string Table::padded(size_t column, const std::string& cell, size_t to) const {
  const std::string pad(to - width(cell), ' ');
  return is_right(column) ? pad + cell : cell + pad;
}

std::string Table::text(const std::string& indent) const {
  const std::vector<size_t> wide = widths();
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) line += (i ? "  " : "") + padded(i, row[i], wide[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string Table::markdown() const {
  const std::vector<size_t> wide = widths();
  std::string out;
  for (const auto& row : rows_) {
    out += "|";
    for (size_t i = 0; i < row.size(); ++i) out += " " + padded(i, row[i], wide[i]) + " |";
    out += "\n";
    if (&row != &rows_[0]) continue;
    out += "|";
    for (size_t i = 0; i < row.size(); ++i)
      out += std::string(wide[i] + 1, '-') + (is_right(i) ? ":|" : "-|");
    out += "\n";
  }
  return out;
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

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) out.append(out.empty() ? "" : separator).append(part);
  return out;
}

}  // namespace kvasir::tool
