// Text for people and JSON for programs: aligned tables, sizes, numbers, lists of ids.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/tokenizer/tokenizer.h"

namespace kvasir::tool {

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Columns as wide as their widest cell; those named in `right` (by index) are right-aligned, the
// last one is never padded.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::vector<size_t> right = {});
  void add(std::vector<std::string> row);
  std::string text(const std::string& indent = "") const;
  bool empty() const { return rows_.size() < 2; }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> right_;
};

// The one JSON document of --json; bytes that are no UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& document);

std::string gigabytes(uint64_t bytes);   // "17.18", decimal, two digits
std::string bytes_text(uint64_t bytes);  // "1.07 GB", "34.6 MB", "512 B"

// A float as it was meant: 1e-05, not 9.999999747378752e-06.
double plain(float value);

// "4096", "32K" (x 1024), "1M". Error naming `flag`.
uint64_t parse_count(const std::string& text, const std::string& flag);
std::vector<uint32_t> parse_counts(const std::string& list, const std::string& flag);
// Ids separated by commas or white space.
std::vector<TokenId> parse_token_ids(std::string_view list, const std::string& flag);
std::string join(const std::vector<std::string>& parts, const char* separator);

}  // namespace kvasir::tool
