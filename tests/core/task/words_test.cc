// The word lists and the filler made of them.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/task/prose.h"
#include "core/task/words.h"

namespace kvasir {
namespace {

TEST_SUITE_BEGIN("core/task/words");

TEST_CASE("no word stands in two lists, and all are lower-case letters") {
  std::map<std::string_view, int> seen;
  for (const words::List list :
       {words::things(), words::places(), words::people(), words::adjectives(), words::actions(),
        words::movements(), words::adverbs(), words::joints()}) {
    for (const std::string_view word : list) {
      CAPTURE(word);
      CHECK(++seen[word] == 1);
      CHECK(std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; }));
    }
  }
  CHECK(seen.size() > 300);
  CHECK(words::keys().size() ==
        words::things().size() + words::places().size() + words::adjectives().size());
}

TEST_CASE("filler holds no digit and none of the phrases that tasks plant") {
  TaskRandom random(7);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = prose_sentence(random);
    CAPTURE(text);
    CHECK(text.find_first_of("0123456789\n=:?") == std::string::npos);
    for (const char* phrase : {"key", "code", "value", "sequence", "Set ", "pair", "recall"})
      CHECK(text.find(phrase) == std::string::npos);
    CHECK((text[0] >= 'A' && text[0] <= 'Z'));
    CHECK(text.ends_with('.'));
  }
}

TEST_CASE("sentences vary") {
  TaskRandom random(8);
  std::set<std::string> seen;
  for (int i = 0; i < 2000; ++i) seen.insert(prose_sentence(random));
  CHECK(seen.size() > 1900);
}

// The draws are part of what a seed means: figures published with one can be had again.
TEST_CASE("a seed means the same text everywhere") {
  TaskRandom random(1);
  CHECK(random.below(1000) == 528);
  CHECK(prose_sentence(random) == "Once a week, a grass was distant.");
}

TEST_CASE("below() is uniform, and reaches both ends") {
  TaskRandom random(3);
  std::map<uint64_t, int> counts;
  for (int i = 0; i < 70000; ++i) ++counts[random.below(7)];
  CHECK(counts.size() == 7);
  for (const auto& [value, n] : counts) CHECK(std::abs(n - 10000) < 500);  // 5 standard deviations
}

TEST_CASE("training and evaluation never share a generator state") {
  for (uint64_t i = 0; i < 1000; ++i) {
    CHECK((TaskRandom::state_of(i, 3, i) >> 63) == 0);
    CHECK((TaskRandom::state_of(kFirstTrainingSeed - 1, i, 5) >> 63) == 0);
    CHECK((TaskRandom::state_of(kFirstTrainingSeed + i, 3, i) >> 63) == 1);
    CHECK((TaskRandom::state_of(UINT64_MAX, i, 5) >> 63) == 1);
  }
  std::set<uint64_t> states;
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (uint64_t task = 0; task < 11; ++task)
      for (uint64_t i = 0; i < 50; ++i) states.insert(TaskRandom::state_of(seed, task, i));
  CHECK(states.size() == 20 * 11 * 50);
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
