// The grammar of the filler:
//   sentence  = [time ","] clause [joint clause] ["." | adverb "." | time "."]
//   clause    = who (action what [where] | movement where | "was" adjective)
//   who       = article [adjective] person;  what, where likewise
// SPDX-License-Identifier: Apache-2.0
#include "core/task/prose.h"

#include <cctype>

#include "core/task/words.h"

namespace kvasir {
namespace {

constexpr std::string_view kNear[] = {"in", "near", "behind", "at", "by", "beside", "outside"};

bool starts_with_vowel(std::string_view word) {
  return std::string_view("aeiou").find(word[0]) != std::string_view::npos &&
         !word.starts_with("uni") && !word.starts_with("use");
}

class Grammar {
 public:
  explicit Grammar(TaskRandom& random) : random_(random) {}

  std::string sentence() {
    const bool opens = random_.chance(6);
    if (opens) {
      word(random_.pick(words::times()));
      text_ += ",";
    }
    clause();
    if (random_.chance(3)) {
      word(random_.pick(words::joints()));
      clause();
    }
    if (random_.chance(5)) word(random_.pick(words::adverbs()));
    if (!opens && random_.chance(4)) word(random_.pick(words::times()));
    text_[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text_[0])));
    return text_ + ".";
  }

 private:
  void word(std::string_view text) {
    if (!text_.empty()) text_ += ' ';
    text_ += text;
  }

  void noun(words::List list) {
    const std::string_view name = random_.pick(list);
    const std::string_view quality =
        random_.chance(3) ? random_.pick(words::adjectives()) : std::string_view();
    const std::string_view first = quality.empty() ? name : quality;
    word(random_.below(3) ? "the" : starts_with_vowel(first) ? "an" : "a");
    if (!quality.empty()) word(quality);
    word(name);
  }

  void where() {
    word(random_.pick(std::span<const std::string_view>(kNear)));
    noun(words::places());
  }

  void clause() {
    switch (random_.below(5)) {
      case 0:
        noun(words::people());
        word(random_.pick(words::movements()));
        return where();
      case 1:
        noun(random_.chance(2) ? words::things() : words::places());
        word("was");
        return word(random_.pick(words::adjectives()));
      default:
        noun(words::people());
        word(random_.pick(words::actions()));
        noun(words::things());
        if (random_.chance(2)) where();
    }
  }

  TaskRandom& random_;
  std::string text_;
};

}  // namespace

std::string prose_sentence(TaskRandom& random) { return Grammar(random).sentence(); }

}  // namespace kvasir
