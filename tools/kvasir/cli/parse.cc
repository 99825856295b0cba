// See parse.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/parse.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/error.h"

namespace kvasir::tool {

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
    throw input_error(flag + " " + text + ": expected a number, as 4096, 32K or 1M");
  return value * unit;
}

std::vector<uint32_t> parse_counts(const std::string& list, const std::string& flag,
                                   uint32_t least) {
  std::vector<uint32_t> out;
  for (const std::string& word : split(list, ',')) {
    const uint64_t count = parse_count(word, flag);
    if (count < least) throw input_error(flag + " " + list + ": must be above 0");
    out.push_back(static_cast<uint32_t>(count));
  }
  return out;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::vector<TokenId> parse_token_ids(std::string_view list, const std::string& flag) {
  constexpr std::string_view kSpace = " \t\r\n", kBetween = ", \t\r\n";
  std::vector<TokenId> ids;
  const auto skip = [&](size_t at) {
    return std::min(list.find_first_not_of(kSpace, at), list.size());
  };
  for (size_t at = skip(0); at < list.size();) {
    const size_t end = std::min(list.find_first_of(kBetween, at), list.size());
    TokenId id = 0;
    const auto parsed = std::from_chars(list.data() + at, list.data() + end, id);
    if (parsed.ec != std::errc() || parsed.ptr != list.data() + end || id < 0)
      throw input_error(flag + ": '" +
                        std::string(list.substr(at, std::min<size_t>(end - at, 40))) +
                        "' is no token id; expected numbers separated by commas");
    ids.push_back(id);
    at = skip(end);
    if (at == list.size() || list[at] != ',') continue;
    at = skip(at + 1);
    if (at == list.size()) throw input_error(flag + ": there is no token id behind the last comma");
  }
  return ids;
}

}  // namespace kvasir::tool
