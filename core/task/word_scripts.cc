// Words that must be counted; see graded_scripts.h. Recipes and questions of NVIDIA/RULER
// (arXiv:2404.06654), scripts/data/synthetic/common_words_extraction.py and
// freq_words_extraction.py.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/task/graded_scripts.h"
#include "core/task/script_parts.h"
#include "core/task/words.h"

namespace kvasir {
namespace {

constexpr size_t kShortContext = 4096;  // below it words are repeated less often
constexpr size_t kUsualCommon = 10;

// How often words stand in the list and in the example before it, which has example_words times as
// many words as are asked for.
struct Repeats {
  size_t common, other, example_common, example_other, example_words;
};
constexpr Repeats kShortRepeats{6, 1, 3, 1, 2}, kRepeats{30, 3, 10, 3, 4};

constexpr size_t kCodedLetters = 6;
constexpr size_t kTokensPerCodedWord = 50;  // of the context, per word of the vocabulary
constexpr size_t kLeastVocabulary = 8;
constexpr size_t kAskedCoded = 3;
constexpr size_t kLeastDraws = 32;  // of which the last word asked for is one, and the next none
const double kZeta2 = std::acos(-1.0) * std::acos(-1.0) / 6;

// " 7. lamp"
std::string entry(size_t place, const std::string& word) {
  return std::string(" ").append(std::to_string(place)).append(". ").append(word);
}

// " 1. lamp 2. stone"
std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += entry(i + 1, words[i]);
  return text;
}

struct WordList {
  std::vector<std::string> common, all;  // all: shuffled
};

// Different words: those of the lists as long as there are any, then pairs of them.
class WordSource {
 public:
  explicit WordSource(TaskRandom& random) : random_(random) {
    for (const words::List list :
         {words::keys(), words::people(), words::actions(), words::movements(), words::adverbs()})
      single_.insert(single_.end(), list.begin(), list.end());
    random_.shuffle(std::span<std::string_view>(single_));
  }
  std::string next() {
    if (used_ < single_.size()) return std::string(single_[used_++]);
    return unique_([&] {
      return std::string(random_.pick(words::adjectives())) + "-" +
             std::string(random_.pick(words::keys()));
    });
  }

 private:
  TaskRandom& random_;
  std::vector<std::string_view> single_;
  size_t used_ = 0;
  Unique unique_;
};

WordList word_list(size_t n_common, size_t common_times, const std::vector<std::string>& words,
                   size_t other_times, TaskRandom& random) {
  WordList out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i < n_common) out.common.push_back(words[i]);
    out.all.insert(out.all.end(), i < n_common ? common_times : other_times, words[i]);
  }
  random.shuffle(std::span<std::string>(out.all));
  return out;
}

std::vector<std::string> draw_words(WordSource& source, size_t n) {
  std::vector<std::string> out;
  while (out.size() < n) out.push_back(source.next());
  return out;
}

// "..." and n - 1 coded words, at least those that are asked for.
std::vector<std::string> coded_vocabulary(size_t n, TaskRandom& random) {
  Unique unique;
  std::vector<std::string> out{"..."};
  while (out.size() < std::max(n, kAskedCoded + 1))
    out.push_back(unique([&] {
      std::string word;
      while (word.size() < kCodedLetters) word += static_cast<char>('a' + random.below(26));
      return word;
    }));
  return out;
}

// How often the word of rank k + 1 stands among so many draws of the zeta distribution.
size_t coded_times(size_t n_draws, size_t k) {
  const auto rank = static_cast<double>(k + 1);
  return static_cast<size_t>(static_cast<double>(n_draws) / (rank * rank * kZeta2));
}

// The most draws whose words have at most `budget` tokens, such that the last word asked for stands
// more often than the next one.
size_t coded_draws(const std::vector<std::string>& vocabulary, size_t budget,
                   PieceEncoder& encoder) {
  std::vector<size_t> tokens_of;
  for (const std::string& word : vocabulary) tokens_of.push_back(encoder.count(" " + word));
  const auto tokens = [&](size_t n_draws) {
    size_t sum = 0;
    for (size_t k = 0; k < vocabulary.size(); ++k) sum += coded_times(n_draws, k) * tokens_of[k];
    return sum;
  };
  size_t low = kLeastDraws, high = std::max(budget, kLeastDraws);
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (tokens(middle) <= budget)
      low = middle;
    else
      high = middle - 1;
  }
  while (low > kLeastDraws && coded_times(low, kAskedCoded) == coded_times(low, kAskedCoded + 1))
    --low;
  return low;
}

// n words to find. `tokens`: written, what the script takes.
Script common_words_script(size_t n, const Repeats& repeats, size_t budget, TaskRandom& random,
                           PieceEncoder& encoder, size_t& tokens) {
  const std::string count = std::to_string(n);
  const std::string intro =
      " Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n";
  const std::string question = "\nQuestion: What are the " + count +
                               " most common words in the above list? Answer: The top " + count +
                               " words that appear most often in the list are:";
  WordSource source(random);
  const WordList example =
      word_list(n, repeats.example_common, draw_words(source, repeats.example_words * n),
                repeats.example_other, random);
  const std::string before = intro + numbered(example.all).substr(1) + question +
                             numbered(example.common) + "\n" + intro.substr(1);

  std::vector<std::string> words = draw_words(source, n);
  size_t place = 0;
  size_t used =
      encoder.count(before) + encoder.count(question) + encoder.count(numbered(words)) + 2;
  const auto add = [&](const std::string& word, size_t times) {
    for (size_t k = 0; k < times; ++k) used += encoder.count(entry(++place, word));
  };
  for (const std::string& word : words) add(word, repeats.common);
  do {
    words.push_back(source.next());
    add(words.back(), repeats.other);
  } while (used <= budget);
  tokens = used;
  if (words.size() > n + 1) {  // the one that did not fit
    tokens = budget;
    words.pop_back();
  }
  const WordList list = word_list(n, repeats.common, words, repeats.other, random);
  Script script;
  script.filler = Filler::kNone;
  script.statements.push_back(statement(before, numbered(list.all).substr(1), "", 0));
  script.questions.push_back({question, numbered(list.common), list.common});
  return script;
}

}  // namespace

Script common_words(const TaskOptions& options, size_t budget, TaskRandom& random,
                    PieceEncoder& encoder) {
  const size_t n = draw(random, options.pairs, {kUsualCommon, kUsualCommon});
  size_t tokens = 0;
  if (budget + 2 >= kShortContext) {
    Script script = common_words_script(n, kRepeats, budget, random, encoder, tokens);
    if (tokens <= budget) return script;  // a vocabulary may need more for a word than RULER's
  }
  return common_words_script(n, kShortRepeats, budget, random, encoder, tokens);
}

Script frequent_words(const TaskOptions& options, size_t budget, TaskRandom& random,
                      PieceEncoder& encoder) {
  const std::string before =
      " Read the following coded text and track the frequency of each coded word. Find the three "
      "most frequently appeared coded words. ";
  const std::string question =
      "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
      "three most frequently appeared words in the above coded text? Answer: According to the "
      "coded text above, the three most frequently appeared words are:";
  const size_t usual = std::max(budget / kTokensPerCodedWord, kLeastVocabulary);
  const size_t n_words = options.pairs.given() ? draw(random, options.pairs, {}) : usual;
  const std::vector<std::string> vocabulary = coded_vocabulary(n_words, random);
  const std::vector<std::string> asked(vocabulary.begin() + 1,
                                       vocabulary.begin() + 1 + kAskedCoded);
  const std::string answer = " " + asked[0] + " " + asked[1] + " " + asked[2];
  const size_t around = encoder.count(before) + encoder.count(question) + encoder.count(answer) + 2;
  const size_t n_draws = coded_draws(vocabulary, budget > around ? budget - around : 0, encoder);
  std::vector<std::string> drawn;
  for (size_t k = 0; k < vocabulary.size(); ++k)
    drawn.insert(drawn.end(), coded_times(n_draws, k), vocabulary[k]);
  random.shuffle(std::span<std::string>(drawn));
  std::string text;
  for (const std::string& word : drawn) text += (text.empty() ? "" : " ") + word;
  Script script;
  script.filler = Filler::kNone;
  script.statements.push_back(statement(before, text, "", 0));
  script.questions.push_back({question, answer, asked});
  return script;
}

}  // namespace kvasir
