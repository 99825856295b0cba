// See question_scorers.h. Rules of OpenBMB/InfiniteBench src/compute_scores.py and
// THUDM/LongBench pred.py (of LongBench v2).
// SPDX-License-Identifier: Apache-2.0
#include "core/task/question_scorers.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace kvasir::scoring {
namespace {

constexpr std::string_view kAsciiMarks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
constexpr std::string_view kChineseMarks =
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕"
    "〖〗〘〙〚〛"
    "〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";
constexpr std::string_view kWideSpace = "　";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool goes_on = false;
  for (const char c : text) {
    if (is_space(c)) {
      goes_on = false;
      continue;
    }
    if (!goes_on) words.emplace_back();
    words.back() += c;
    goes_on = true;
  }
  return words;
}

// In lower case, without punctuation and articles.
std::vector<std::string> plain_words(std::string_view text) {
  std::string plain;
  for (const char c : text)
    if (kAsciiMarks.find(c) == kAsciiMarks.npos) plain += lower(c);
  std::vector<std::string> words = words_of(plain);
  std::erase_if(words, [](const std::string& w) { return w == "a" || w == "an" || w == "the"; });
  return words;
}

std::vector<uint32_t> plain_characters(std::string_view text) {
  static const std::vector<uint32_t> marks = [] {
    std::vector<uint32_t> all = characters(kChineseMarks);
    for (const char c : kAsciiMarks) all.push_back(static_cast<unsigned char>(c));
    for (const uint32_t c : characters(kWideSpace)) all.push_back(c);
    return all;
  }();
  std::string plain;
  for (const char c : text)
    if (!is_space(c)) plain += lower(c);
  std::vector<uint32_t> out = characters(plain);
  std::erase_if(
      out, [&](uint32_t c) { return std::find(marks.begin(), marks.end(), c) != marks.end(); });
  return out;
}

template <class Unit>
double f1(const std::vector<Unit>& said, const std::vector<Unit>& wanted) {
  std::map<Unit, size_t> left;
  for (const Unit& unit : wanted) ++left[unit];
  size_t n_same = 0;
  for (const Unit& unit : said) {
    const auto it = left.find(unit);
    if (it == left.end() || it->second == 0) continue;
    --it->second;
    ++n_same;
  }
  if (n_same == 0) return 0;
  const double precision = static_cast<double>(n_same) / static_cast<double>(said.size());
  const double recall = static_cast<double>(n_same) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

bool is_one_of(std::string_view text, std::span<const std::string> references) {
  return std::find(references.begin(), references.end(), text) != references.end();
}

// The first number of the text, "12" or "12.5"; empty without.
std::string_view first_number(std::string_view text) {
  const auto digits_end = [&](size_t at) {
    while (at < text.size() && is_digit(text[at])) ++at;
    return at;
  };
  const auto first = std::find_if(text.begin(), text.end(), is_digit);
  const auto begin = static_cast<size_t>(first - text.begin());
  size_t end = digits_end(begin);
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1]))
    end = digits_end(end + 1);
  return text.substr(begin, end - begin);
}

bool read_number(std::string_view text, double& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

}  // namespace

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

bool equals_one(std::string_view prediction, std::span<const std::string> references) {
  return std::any_of(references.begin(), references.end(), [&](const std::string& reference) {
    return trimmed(prediction) == trimmed(reference);
  });
}

double f1_of_words(std::string_view prediction, std::span<const std::string> references) {
  double best = 0;
  for (const std::string& reference : references)
    best = std::max(best, f1(plain_words(prediction), plain_words(reference)));
  return best;
}

double f1_of_characters(std::string_view prediction, std::span<const std::string> references) {
  double best = 0;
  for (const std::string& reference : references)
    best = std::max(best, f1(plain_characters(prediction), plain_characters(reference)));
  return best;
}

bool chooses(std::string_view prediction, std::span<const std::string> references) {
  constexpr std::string_view kLetters = "ABCD", kMarks = "\n\"'.,?!{}";
  if (prediction.empty()) return false;
  if (kLetters.find(prediction[0]) != kLetters.npos)
    return is_one_of(prediction.substr(0, 1), references);
  std::string text;
  for (const char c : prediction) {
    const char plain = kMarks.find(c) == kMarks.npos ? c : ' ';
    if (plain != ' ' || text.empty() || text.back() != ' ') text += plain;
  }
  for (const std::string_view before : {"answer is:", "answer:", "answer is", "option is"}) {
    const size_t at = text.find(before);
    if (at == text.npos) continue;
    const size_t begin = at + before.size() + 1;
    return begin <= text.size() &&
           std::any_of(references.begin(), references.end(), [&](const std::string& reference) {
             return text.compare(begin, reference.size(), reference) == 0;
           });
  }
  for (const std::string& word : words_of(text))
    if (kLetters.find(word) != kLetters.npos) return is_one_of(word, references);
  return false;
}

std::string named_choice(std::string_view prediction) {
  constexpr std::string_view kBefore = "The correct answer is ";
  std::string text;
  for (const char c : prediction)
    if (c != '*') text += c;
  for (const bool in_brackets : {true, false}) {
    for (size_t at = text.find(kBefore); at != text.npos; at = text.find(kBefore, at + 1)) {
      const std::string_view after = std::string_view(text).substr(at + kBefore.size());
      const size_t letter = in_brackets ? 1 : 0;
      if (after.size() <= 2 * letter || after[letter] < 'A' || after[letter] > 'D') continue;
      if (!in_brackets || (after[0] == '(' && after[2] == ')'))
        return std::string(1, after[letter]);
    }
  }
  return "";
}

bool first_number_is(std::string_view prediction, const std::string& reference) {
  const std::string_view said = first_number(prediction);
  double a = 0, b = 0;
  // A whole number is right as a whole number alone.
  if (reference.find('.') == reference.npos && said.find('.') != said.npos) return false;
  return read_number(said, a) && read_number(trimmed(reference), b) && a == b;
}

}  // namespace kvasir::scoring
