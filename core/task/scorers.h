// Scores of generated text as the field's benchmarks give them. Pure functions of bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

enum class Scorer {
  kPasskey,      // InfiniteBench passkey and number string: the first run of digits is the answer
  kKvRetrieval,  // InfiniteBench kv retrieval: the answer is one of the words
  kNeedle,       // OpenCompass NeedleBench: 1 where the keyword occurs, else closeness, at most 0.2
  kStringAll,    // RULER string_match_all: share of the references that occur, in any case
  kStringPart,   // RULER string_match_part: whether any of them does
  kExact,        // equal to one of the references, white space around both aside
  kQaF1,         // SQuAD's F1 of words, without articles and punctuation; the best reference counts
  kQaF1Zh,       // InfiniteBench's of characters, for Chinese
  kChoice,       // InfiniteBench longbook_choice_eng: the letter said first, or behind "answer is"
  kLongBench2,   // LongBench v2: the letter behind "The correct answer is"
  kFirstNumber,  // InfiniteBench math_find: the first number has the reference's value
  kEighths,      // share of the eighths of the reference that stand where they belong
  kJsonObject,   // half for an object of the wanted form, all when its values are right, too
};
const char* name(Scorer scorer);  // "passkey", "kv_retrieval", …
std::vector<Scorer> all_scorers();
// Error(kInput) naming `flag` and the nearest scorer.
Scorer scorer_by_name(const std::string& text, const std::string& flag);

// 0 … 1. No reference scores 0. kStringAll, kStringPart, kExact, kQaF1, kQaF1Zh and kChoice know
// several references, the others read the first; kNeedle compares with it and looks for the second,
// the keyword, or without it for the first. kJsonObject: see json_answer.h.
double score(Scorer scorer, std::string_view prediction, std::span<const std::string> references);

// Whether each eighth of the reference, by bytes, stands at its place in the prediction, whose
// white space and opening quotation mark do not count.
std::array<bool, 8> right_eighths(std::string_view prediction, std::string_view reference);

// Bytes to insert, remove or replace to make one text of the other: Levenshtein 1966.
// Time is the product of the lengths. Of characters, where both are UTF-8.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace kvasir
