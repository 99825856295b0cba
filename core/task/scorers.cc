// See scorers.h. Rules of OpenBMB/InfiniteBench src/compute_scores.py, open-compass/opencompass
// datasets/needlebench/origin.py and NVIDIA/RULER scripts/eval/synthetic/constants.py.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/scorers.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/config/strategy.h"
#include "core/error.h"

namespace kvasir {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view first_digits(std::string_view text) {
  const auto begin = std::find_if(text.begin(), text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  return text.substr(static_cast<size_t>(begin - text.begin()), static_cast<size_t>(end - begin));
}

// Words end at white space and at  : " ' . , ? ! { }
bool has_word(std::string_view text, std::string_view word) {
  constexpr std::string_view kMarks = ":\"'.,?!{}";
  const auto ends = [&](char c) { return is_space(c) || kMarks.find(c) != kMarks.npos; };
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && !ends(text[end])) ++end;
    if (end > begin && text.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

bool contains_any_case(std::string_view text, std::string_view part) {
  const auto equal = [](char a, char b) { return lower(a) == lower(b); };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), equal) != text.end() ||
         part.empty();
}

std::string without_space(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out),
               [](char c) { return !is_space(c); });
  return out;
}

// Code points; a byte that is no UTF-8 stands for itself.
std::vector<uint32_t> characters(std::string_view text) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t n = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    uint32_t value = byte;
    for (size_t k = 1; k < n && i + k < text.size(); ++k)
      value = value << 8 | static_cast<unsigned char>(text[i + k]);
    out.push_back(value);
    i += n;
  }
  return out;
}

double needle_score(std::string_view prediction, std::span<const std::string> references) {
  const std::string& keyword = references.size() > 1 ? references[1] : references[0];
  if (prediction.find(keyword) != prediction.npos) return 1;
  const std::string said = without_space(prediction), wanted = without_space(references[0]);
  const size_t longest = std::max(characters(said).size(), characters(wanted).size());
  if (longest == 0) return 0.2;
  return 0.2 *
         (1 - static_cast<double>(edit_distance(said, wanted)) / static_cast<double>(longest));
}

}  // namespace

const char* name(Scorer scorer) {
  switch (scorer) {
    case Scorer::kPasskey:
      return "passkey";
    case Scorer::kKvRetrieval:
      return "kv_retrieval";
    case Scorer::kNeedle:
      return "needle";
    case Scorer::kStringAll:
      return "string_match_all";
    case Scorer::kStringPart:
      return "string_match_part";
  }
  return "";
}

std::vector<Scorer> all_scorers() {
  return {Scorer::kPasskey, Scorer::kKvRetrieval, Scorer::kNeedle, Scorer::kStringAll,
          Scorer::kStringPart};
}

Scorer scorer_by_name(const std::string& text, const std::string& flag) {
  std::vector<std::string> names;
  for (const Scorer scorer : all_scorers()) {
    if (text == name(scorer)) return scorer;
    names.emplace_back(name(scorer));
  }
  const std::string nearest = nearest_name(text, names);
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  throw input_error(flag + " " + text + ": no such scorer; " +
                    (nearest.empty() ? "there are " + all : "did you mean " + nearest + "?"));
}

double score(Scorer scorer, std::string_view prediction, std::span<const std::string> references) {
  if (references.empty()) return 0;
  const auto n_found = std::count_if(
      references.begin(), references.end(),
      [&](const std::string& reference) { return contains_any_case(prediction, reference); });
  switch (scorer) {
    case Scorer::kPasskey:
      return first_digits(prediction) == references[0];
    case Scorer::kKvRetrieval:
      return has_word(prediction, references[0]);
    case Scorer::kNeedle:
      return needle_score(prediction, references);
    case Scorer::kStringAll:
      return static_cast<double>(n_found) / static_cast<double>(references.size());
    case Scorer::kStringPart:
      return n_found > 0;
  }
  return 0;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  const std::vector<uint32_t> x = characters(a), y = characters(b);
  std::vector<size_t> row(y.size() + 1);  // distances of x[0, i) to y[0, j)
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < x.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < y.size(); ++j) {
      const size_t replaced = diagonal + (x[i] != y[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace kvasir
