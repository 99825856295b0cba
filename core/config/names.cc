// Names: the nearest one to a typing error, tables, origins, values as text.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "core/config/raw.h"

namespace kvasir {
namespace {

std::string lower(const std::string& text) {
  std::string result = text;
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Insertions, deletions, substitutions and swaps of neighbours, each counting one.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 128;  // no name of ours is longer; bounds the cost
  if (name.empty() || name.size() > kLongest) return {};
  const std::string wanted = lower(name);
  std::string best;
  size_t best_distance = std::max<size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = edit_distance(wanted, lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || wanted.size() < 4) return best;
  // "window" for "window_tokens": too far to be a typing error, near enough to be meant.
  for (const std::string& candidate : candidates) {
    if (lower(candidate).find(wanted) != std::string::npos) return candidate;
  }
  return {};
}

const char* table_name(Kind kind) {
  switch (kind) {
    case Kind::kSelector:
      return "selector";
    case Kind::kRepresentative:
      return "representative";
    case Kind::kStorage:
      return "storage";
    case Kind::kAttention:
      return "attention";
  }
  return "unknown";
}

std::string Origin::text() const {
  if (source == Source::kDefault) return "default";
  if (source != Source::kFile) return name;
  if (line == 0) return name;
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

namespace config {

Error error_at(const Origin& origin, const std::string& what) {
  return input_error(origin.text() + ": " + what);
}

Error wrong_type(const OptionSetting& entry, const std::string& wanted) {
  return error_at(entry.origin, entry.key + " must be " + wanted + ", not " +
                                    type_name(entry.value) + " (" + value_text(entry.value) + ")");
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? std::string() : " (did you mean \"" + nearest + "\"?)";
}

const std::vector<std::string>& table_names() {
  static const std::vector<std::string> names = {"cache",          "blend",   "selector",
                                                 "representative", "storage", "attention"};
  return names;
}

const char* type_name(const OptionValue& value) {
  static constexpr std::array<const char*, 5> kNames = {"a boolean", "an integer", "a float",
                                                        "a string", "a list of integers"};
  return kNames[value.index()];
}

std::string value_text(const OptionValue& value) {
  struct Printer {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return std::to_string(i); }
    std::string operator()(double f) const {
      std::array<char, 64> buffer;
      const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), f);
      std::string text(buffer.data(), end.ptr);
      const bool is_plain = text.find_first_not_of("-0123456789") == std::string::npos;
      return is_plain ? text + ".0" : text;
    }
    std::string operator()(const std::string& s) const {
      std::string text = "\"";
      for (const char c : s) {
        if (c == '"' || c == '\\') text += '\\';
        text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
      }
      return text + "\"";
    }
    std::string operator()(const std::vector<int64_t>& list) const {
      std::string text = "[";
      for (size_t i = 0; i < list.size(); ++i) {
        text += (i ? ", " : "") + std::to_string(list[i]);
      }
      return text + "]";
    }
  };
  return std::visit(Printer{}, value);
}

}  // namespace config
}  // namespace kvasir
