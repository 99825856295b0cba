// See scorers.h. Rules of OpenBMB/InfiniteBench src/compute_scores.py, open-compass/opencompass
// datasets/needlebench/origin.py and NVIDIA/RULER scripts/eval/synthetic/constants.py. Those that
// read questions and choices: question_scorers.cc.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/scorers.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/config/strategy.h"
#include "core/error.h"
#include "core/task/json_answer.h"
#include "core/task/question_scorers.h"

namespace kvasir {
namespace {

using scoring::characters;
using scoring::is_digit;
using scoring::is_space;
using scoring::lower;

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
    case Scorer::kExact:
      return "exact";
    case Scorer::kQaF1:
      return "qa_f1";
    case Scorer::kQaF1Zh:
      return "qa_f1_zh";
    case Scorer::kChoice:
      return "choice";
    case Scorer::kLongBench2:
      return "longbench2";
    case Scorer::kFirstNumber:
      return "first_number";
    case Scorer::kEighths:
      return "eighths";
    case Scorer::kJsonObject:
      return "json_object";
  }
  return "";
}

std::vector<Scorer> all_scorers() {
  return {Scorer::kPasskey,    Scorer::kKvRetrieval, Scorer::kNeedle,      Scorer::kStringAll,
          Scorer::kStringPart, Scorer::kExact,       Scorer::kQaF1,        Scorer::kQaF1Zh,
          Scorer::kChoice,     Scorer::kLongBench2,  Scorer::kFirstNumber, Scorer::kEighths,
          Scorer::kJsonObject};
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
    case Scorer::kExact:
      return scoring::equals_one(prediction, references);
    case Scorer::kQaF1:
      return scoring::f1_of_words(prediction, references);
    case Scorer::kQaF1Zh:
      return scoring::f1_of_characters(prediction, references);
    case Scorer::kChoice:
      return scoring::chooses(prediction, references);
    case Scorer::kLongBench2:
      return scoring::named_choice(prediction) == references[0];
    case Scorer::kFirstNumber:
      return scoring::first_number_is(prediction, references[0]);
    case Scorer::kEighths: {
      const auto right = right_eighths(prediction, references[0]);
      return static_cast<double>(std::count(right.begin(), right.end(), true)) / 8;
    }
    case Scorer::kJsonObject: {
      const JsonAnswer answer = judge_json(prediction, references[0]);
      return answer.is_right ? 1 : answer.is_valid ? 0.5 : 0;
    }
  }
  return 0;
}

std::array<bool, 8> right_eighths(std::string_view prediction, std::string_view reference) {
  const auto begin = std::find_if_not(prediction.begin(), prediction.end(),
                                      [](char c) { return is_space(c) || c == '"'; });
  prediction.remove_prefix(static_cast<size_t>(begin - prediction.begin()));
  std::array<bool, 8> right{};
  for (size_t i = 0; i < right.size(); ++i) {
    const size_t from = i * reference.size() / 8, to = (i + 1) * reference.size() / 8;
    right[i] = prediction.size() >= to &&
               prediction.substr(from, to - from) == reference.substr(from, to - from);
  }
  return right;
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
