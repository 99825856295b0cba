// Scores of generated text as the field's benchmarks give them. Pure functions of bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};
const char* name(Scorer scorer);  // "passkey", "kv_retrieval", …
std::vector<Scorer> all_scorers();
// Error(kInput) naming `flag` and the nearest scorer.
Scorer scorer_by_name(const std::string& text, const std::string& flag);

// 0 … 1. `references` has one entry but for RULER's scorers; none scores 0. kNeedle compares with
// `references`[0] and looks for `references`[1], the keyword; without it for [0].
double score(Scorer scorer, std::string_view prediction, std::span<const std::string> references);

// Bytes to insert, remove or replace to make one text of the other: Levenshtein 1966.
// Time is the product of the lengths. Of characters, where both are UTF-8.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace kvasir
