// Samples: their answers stand where they say, once; lengths, keys, distractors, seeds.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/task.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/core/task/least_length.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

struct Maker {
  std::unique_ptr<Tokenizer> tokenizer = test::small_vocabulary();
  PieceEncoder encoder{*tokenizer};

  std::vector<Sample> make(Task task, uint32_t length, uint32_t n, TaskOptions options = {},
                           uint64_t seed = 5) {
    TaskGenerator generator(task, options, length, encoder);
    std::vector<Sample> out;
    for (uint32_t i = 0; i < n; ++i) out.push_back(generator.make(seed, i));
    return out;
  }
};

size_t occurrences(const std::string& text, const std::string& of) {
  size_t n = 0;
  for (size_t at = text.find(of); at != text.npos; at = text.find(of, at + 1)) ++n;
  return n;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == text.npos ? "" : text.substr(begin);
}

// Lines of the context, "key amber lamp=4711" as {"amber lamp", "4711"}.
std::vector<std::pair<std::string, std::string>> pairs_of(const Sample& sample,
                                                          const std::string& verb, char sign) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Planted& p : sample.planted) {
    const std::string line = sample.bytes(p.bytes);
    REQUIRE(line.starts_with(verb + " "));
    const size_t at = line.find(sign);
    out.emplace_back(line.substr(verb.size() + 1, at - verb.size() - 1),
                     trimmed(line.substr(at + 1)));
  }
  return out;
}

TEST_SUITE_BEGIN("core/task/task");

TEST_CASE("the same seed gives the same sample, another seed or index another") {
  Maker maker;
  for (const Task task : all_tasks()) {
    CAPTURE(std::string(name(task)));
    const uint32_t length = std::max(400u, test::least_length(task, maker.encoder));
    const auto a = maker.make(task, length, 3), b = maker.make(task, length, 3);
    const auto c = maker.make(task, length, 3, {}, 6);
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(a[i].text == b[i].text);
      CHECK(a[i].text != c[i].text);
    }
    CHECK(a[0].text != a[1].text);
    Maker other;  // a fresh cache of pieces changes nothing
    CHECK(other.make(task, length, 3)[2].text == a[2].text);
  }
}

// Texts without filler end where no further pair of UUIDs, or word as often as it must stand, fits.
TEST_CASE("a sample is as long as asked for, but for less than a sentence") {
  Maker maker;
  for (const Task task : all_tasks()) {
    CAPTURE(std::string(name(task)));
    const uint32_t least = test::least_length(task, maker.encoder);
    const bool is_filled =
        task != Task::kCommonWords && task != Task::kFrequentWords && task != Task::kUuidRetrieval;
    for (const uint32_t length : {320u, 1024u, 5000u}) {
      if (length < least) continue;
      for (const Sample& sample : maker.make(task, length, 5)) {
        CHECK(sample.tokens.ids.size() <= length);
        CHECK(sample.tokens.ids.size() + (is_filled ? 40 : 200) > length);
        CHECK(sample.tokens.ids == maker.tokenizer->encode(sample.text, {}));
      }
    }
  }
}

TEST_CASE("every answer is what the statements it is asked of say, at the said place") {
  Maker maker;
  for (const Task task : question_tasks()) {
    CAPTURE(std::string(name(task)));
    for (const Sample& sample : maker.make(task, 600, 20)) {
      CAPTURE(sample.text);
      REQUIRE(!sample.turns.empty());
      size_t at = 0;
      for (size_t turn = 0; turn < sample.turns.size(); ++turn) {
        const Turn& t = sample.turns[turn];
        CHECK(t.question.begin >= at);
        CHECK(t.answer.begin == t.question.end);
        at = t.answer.end;
        CHECK(sample.text[at] == '\n');
        std::string expected;
        for (const Planted& p : sample.planted) {
          CHECK(p.bytes.begin <= p.value.begin);
          CHECK(p.value.end <= p.bytes.end);
          CHECK(p.bytes.end <= sample.turns[0].question.begin);
          if (p.turn != static_cast<int>(turn)) continue;
          const std::string value = trimmed(sample.bytes(p.value));
          if (task == Task::kVariableTracking && !expected.empty()) continue;  // first link only
          expected += (expected.empty() ? "" : ", ") + value;
        }
        CHECK(trimmed(sample.bytes(t.answer)) == expected);
      }
      CHECK(sample.prompt() == sample.text.substr(0, sample.turns[0].answer.begin));
    }
  }
}

TEST_CASE("a token span covers its bytes and no token more") {
  Maker maker;
  for (const Sample& sample : maker.make(Task::kNeedle, 200, 20)) {
    for (const Span& bytes : {sample.planted[0].bytes, sample.planted[0].value,
                              sample.turns[0].answer, sample.turns[0].question}) {
      const Span tokens = sample.token_span(bytes);
      REQUIRE(tokens.begin < tokens.end);
      const auto end_of = [&](size_t i) { return sample.tokens.ends[i]; };
      CHECK((tokens.begin == 0 || end_of(tokens.begin - 1) <= bytes.begin));
      CHECK(end_of(tokens.begin) > bytes.begin);
      CHECK(end_of(tokens.end - 1) >= bytes.end);
      CHECK((tokens.end < 2 || end_of(tokens.end - 2) < bytes.end));
    }
  }
}

TEST_CASE("values that answer stand in the context once") {
  Maker maker;
  for (const Task task : {Task::kPasskey, Task::kNeedle, Task::kNeedleMultiKey}) {
    for (const Sample& sample : maker.make(task, 500, 20)) {
      const std::string context = sample.text.substr(0, sample.turns[0].question.begin);
      CHECK(occurrences(context, trimmed(sample.bytes(sample.turns[0].answer))) == 1);
    }
  }
}

TEST_CASE("number strings are five digits with five of them doubled in place") {
  Maker maker;
  for (const Sample& sample : maker.make(Task::kNumberString, 100, 50)) {
    std::string number = trimmed(sample.bytes(sample.turns[0].answer));
    REQUIRE(number.size() == 10);
    size_t doubled = 0;
    for (size_t i = 1; i < number.size(); ++i) doubled += number[i] == number[i - 1];
    CHECK(doubled >= 5);
  }
}

TEST_CASE("keys of kv retrieval are distinct, of the asked length, and share beginnings") {
  Maker maker;
  size_t shared = 0, n_keys = 0;
  for (const Sample& sample : maker.make(Task::kKvRetrieval, 1024, 10)) {
    std::set<std::string> keys, heads;
    for (const auto& [key, value] : pairs_of(sample, "key", '=')) {
      CHECK(keys.insert(key).second);
      const size_t key_tokens = maker.encoder.count(" " + key);
      CHECK(key_tokens >= 4);
      CHECK(key_tokens < 8 + 6);  // the last word may be several tokens in this vocabulary
      CHECK(maker.encoder.count(value) >= 4);
      CHECK(maker.encoder.count(value) <= 8);
      shared += !heads.insert(key.substr(0, key.find(' '))).second;
      ++n_keys;
    }
    CHECK(keys.size() > 10);
    CHECK(sample.turns.size() == 1);
  }
  CHECK(shared * 3 > n_keys);  // half of them are made so
  CHECK(shared < n_keys);
}

TEST_CASE("lengths of keys and values, pairs and queries are those asked for") {
  Maker maker;
  TaskOptions options;
  options.key_tokens = {1, 2};
  options.value_tokens = {3, 3};
  options.pairs = {2, 6};
  options.queries = {2, 2};
  std::set<size_t> n_pairs;
  for (const Sample& sample : maker.make(Task::kKvRetrieval, 400, 40, options)) {
    n_pairs.insert(sample.planted.size());
    CHECK(sample.turns.size() == 2);
    for (const auto& [key, value] : pairs_of(sample, "key", '='))
      CHECK(maker.encoder.count(value) == 3);
  }
  CHECK(n_pairs == std::set<size_t>{2, 3, 4, 5, 6});
}

TEST_CASE("distractors of multi-key needles have the form of the needle and another name") {
  Maker maker;
  size_t sharing = 0, n = 0;
  for (const Sample& sample : maker.make(Task::kNeedleMultiKey, 500, 40)) {
    REQUIRE(sample.planted.size() == 4);
    const std::string head = "The code of the ";
    std::set<std::string> names, codes;
    std::string asked;
    for (const Planted& p : sample.planted) {
      const std::string text = sample.bytes(p.bytes), code = sample.bytes(p.value);
      REQUIRE(text.starts_with(head));
      const size_t is = text.find(" is ");
      CHECK(text.substr(is) == " is " + code + ".");
      CHECK(code.size() == 7);
      codes.insert(code);
      const std::string key = text.substr(head.size(), is - head.size());
      CHECK(names.insert(key).second);
      if (p.turn == 0) asked = key;
    }
    CHECK(codes.size() == 4);
    CHECK(sample.bytes(sample.turns[0].question).find("the " + asked + "?") != std::string::npos);
    for (const std::string& key : names) {
      const size_t space = asked.find(' ');
      n += key != asked;
      sharing += key != asked && (key.starts_with(asked.substr(0, space + 1)) ||
                                  key.ends_with(asked.substr(space)));
    }
  }
  CHECK(sharing * 3 > n);
}

TEST_CASE("pairs of mqar are distinct and all are asked for") {
  Maker maker;
  for (const Sample& sample : maker.make(Task::kMqar, 400, 10)) {
    std::map<std::string, std::string> pairs;
    for (const auto& [key, value] : pairs_of(sample, "pair", ':'))
      CHECK(pairs.emplace(key, value).second);
    CHECK(pairs.size() == 8);
    CHECK(sample.turns.size() == 8);
    for (const Turn& turn : sample.turns) {
      const std::string question = sample.bytes(turn.question);
      const std::string key = question.substr(8, question.size() - 9);
      CHECK(question == "\nrecall " + key + ":");
      CHECK(pairs[key] == trimmed(sample.bytes(turn.answer)));
      pairs.erase(key);
    }
    CHECK(pairs.empty());
  }
}

// Follows the assignments as a reader would, from the question back to a number.
TEST_CASE("variables lead to the answer in the said number of hops") {
  Maker maker;
  for (uint32_t hops = 1; hops <= 4; ++hops) {
    TaskOptions options;
    options.hops = {hops, hops};
    for (const Sample& sample : maker.make(Task::kVariableTracking, 500, 10, options)) {
      std::map<std::string, std::string> value;
      for (const Planted& p : sample.planted) {
        const std::string text = sample.bytes(p.bytes);
        const size_t to = text.find(" to ");
        const std::string given = text.substr(to + 4, text.size() - to - 5);
        const bool is_number = given.find_first_not_of("0123456789") == std::string::npos;
        if (!is_number) CHECK(value.contains(given));  // set before it is used
        CHECK(value.emplace(text.substr(4, to - 4), given).second);
      }
      CHECK(value.size() == 2 * (hops + 1));
      const std::string question = sample.bytes(sample.turns[0].question);
      const size_t of = question.find(" of ");
      std::string at = question.substr(of + 4, question.find('?') - of - 4);
      uint32_t steps = 0;
      while (value.contains(at)) {
        at = value[at];
        ++steps;
      }
      CHECK(steps == hops + 1);
      CHECK(at == trimmed(sample.bytes(sample.turns[0].answer)));
    }
  }
}

TEST_CASE("needles lie anywhere in the text") {
  Maker maker;
  std::map<int, int> fifths;
  for (const Sample& sample : maker.make(Task::kPasskey, 1500, 250)) {
    const double depth = sample.planted[0].depth;
    CHECK(depth >= 0.0);
    CHECK(depth < 1.0);
    CHECK(depth ==
          doctest::Approx(static_cast<double>(sample.token_span(sample.planted[0].bytes).begin) /
                          static_cast<double>(sample.token_span(sample.turns[0].answer).begin)));
    ++fifths[static_cast<int>(depth * 5)];
  }
  for (int i = 0; i < 5; ++i) CHECK(fifths[i] > 25);  // 50 expected, standard deviation 6.3
}

TEST_CASE("training seeds give other texts than evaluation seeds") {
  Maker maker;
  std::set<std::string> texts;
  for (const uint64_t seed : {uint64_t{5}, kFirstTrainingSeed + 5, uint64_t{0}, kFirstTrainingSeed})
    for (const Sample& sample : maker.make(Task::kPasskey, 200, 20, {}, seed))
      texts.insert(sample.text);
  CHECK(texts.size() == 80);
}

TEST_CASE("a length too short is refused with the one that suffices") {
  Maker maker;
  for (const Task task : question_tasks()) {
    CAPTURE(std::string(name(task)));
    const std::string message = test::error_of([&] { TaskGenerator(task, {}, 4, maker.encoder); });
    const size_t at = message.find("at least ");
    REQUIRE(at != std::string::npos);
    const auto minimum = static_cast<uint32_t>(std::stoul(message.substr(at + 9)));
    CHECK(test::error_of([&] {
            TaskGenerator(task, {}, minimum - 1, maker.encoder);
          }).find("at least " + std::to_string(minimum)) != std::string::npos);
    for (const Sample& sample : maker.make(task, minimum, 50))
      CHECK(sample.tokens.ids.size() <= minimum + 12);
  }
}

TEST_CASE("an unknown task names the nearest one") {
  CHECK(task_by_name("passkey", "--task") == Task::kPasskey);
  const std::string message = test::error_of([] { task_by_name("paskey", "--task"); });
  CHECK(message.find("--task: unknown task 'paskey'; did you mean 'passkey'?") == 0);
}

TEST_CASE("more keys than words can make is an error, not an endless search") {
  Maker maker;
  TaskOptions options;
  options.pairs = {2000, 2000};
  CHECK(test::error_of([&] {
          TaskGenerator(Task::kMqar, options, 100000, maker.encoder);
        }).find("lower --pairs") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
