// Text for people: aligned tables, sizes, numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::tool {

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Each column is as wide as its widest cell. The columns whose indices are in `right` are
// right-aligned; the last one is never padded.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::vector<size_t> right = {});
  void add(std::vector<std::string> row);
  std::string text(const std::string& indent = "") const;
  // As a table of Markdown, whose columns are aligned for those who read it as it is.
  std::string markdown() const;

 private:
  std::vector<size_t> widths() const;
  bool is_right(size_t column) const;
  std::string padded(size_t column, const std::string& cell, size_t width) const;
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> right_;
};

std::string gigabytes(uint64_t bytes);   // "17.18", decimal, two digits
std::string bytes_text(uint64_t bytes);  // "1.07 GB", "34.6 MB", "512 B"

// A float as it was meant: 1e-05, not 9.999999747378752e-06.
double plain(float value);

std::string join(const std::vector<std::string>& parts, const char* separator);

}  // namespace kvasir::tool
