// The project's own word lists, from which filler prose, keys and names are made. Plain words, most
// of them one token in any vocabulary; none occurs in two lists.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace kvasir::words {

using List = std::span<const std::string_view>;

List things();      // nouns one can hold, see or use
List places();      // nouns one can be at
List people();      // nouns for who acts
List adjectives();  // colour, size, mood
List actions();     // verbs with an object, past tense
List movements();   // verbs without one, past tense
List adverbs();
List times();   // "before noon": phrases that open or close a sentence
List joints();  // conjunctions between two clauses
List keys();    // things, places and adjectives together: what keys and names are drawn from

}  // namespace kvasir::words
