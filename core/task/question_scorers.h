// The rules by which answers to questions and choices are scored; scorers.h names them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::scoring {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}
inline char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The bytes of each character as one number; a byte that is no UTF-8 stands for itself.
std::vector<uint32_t> characters(std::string_view text);

bool equals_one(std::string_view prediction, std::span<const std::string> references);
double f1_of_words(std::string_view prediction, std::span<const std::string> references);
double f1_of_characters(std::string_view prediction, std::span<const std::string> references);
// Whether the choice that is made is one of the references (letters, texts of choices).
bool chooses(std::string_view prediction, std::span<const std::string> references);
// The letter of "The correct answer is (B)" or, without such, "The correct answer is B"; ""
// without.
std::string named_choice(std::string_view prediction);
bool first_number_is(std::string_view prediction, const std::string& reference);

}  // namespace kvasir::scoring
