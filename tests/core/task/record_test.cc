// Training records: exact length, masks that mark answers and nothing else.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/record.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = kFirstTrainingSeed;

struct Fixture {
  std::unique_ptr<Tokenizer> tokenizer;
  PieceEncoder encoder;
  explicit Fixture(bool add_bos = false)
      : tokenizer(test::small_vocabulary(add_bos)), encoder(*tokenizer) {}

  // Texts of the marked stretches.
  std::vector<std::string> marked(const Record& record) const {
    std::vector<std::string> out;
    for (size_t i = 0; i < record.ids.size(); ++i) {
      if (!record.mask[i]) continue;
      if (i == 0 || !record.mask[i - 1]) out.emplace_back();
      out.back() += tokenizer->piece(record.ids[i], false);
    }
    return out;
  }
};

TEST_SUITE_BEGIN("core/task/record");

TEST_CASE("records have their length exactly, begin with BOS, and repeat with their seed") {
  Fixture f(true);
  const std::vector<MixPart> mix = {
      {Task::kPasskey, 1}, {Task::kKvRetrieval, 2}, {Task::kRepeat, 3}, {Task::kFiller, 1}};
  RecordStream a(mix, {}, 300, kSeed, f.encoder), b(mix, {}, 300, kSeed, f.encoder);
  std::map<Task, int> counts;
  for (int i = 0; i < 700; ++i) {
    const Record& record = a.next();
    const Record& same = b.next();
    CHECK(record.ids == same.ids);
    CHECK(record.mask == same.mask);
    REQUIRE(record.ids.size() == 300);
    REQUIRE(record.mask.size() == 300);
    CHECK(record.ids[0] == f.tokenizer->bos());
    CHECK(record.mask[0] == 0);
    ++counts[record.task];
  }
  CHECK(std::abs(counts[Task::kRepeat] - 300) < 60);  // 4.6 standard deviations
  CHECK(std::abs(counts[Task::kKvRetrieval] - 200) < 60);
  CHECK(std::abs(counts[Task::kPasskey] - 100) < 45);
}

TEST_CASE("the mask marks the answers of the sample that the record is made of") {
  Fixture f;
  for (const Task task : question_tasks()) {
    CAPTURE(name(task));
    RecordStream stream({{task, 1}}, {}, 400, kSeed, f.encoder);
    TaskGenerator generator(task, {}, 400, f.encoder);
    for (uint64_t i = 0; i < 10; ++i) {
      const Record& record = stream.next();
      const Sample sample = generator.make(kSeed, i);
      std::string expected, found;
      for (const Turn& turn : sample.turns)
        for (const char c : sample.bytes(turn.answer))
          if (c != ' ') expected += c;
      for (const std::string& text : f.marked(record))
        for (const char c : text)
          if (c != ' ') found += c;
      CHECK(found == expected);
      for (size_t t = 0; t < sample.tokens.ids.size(); ++t)
        REQUIRE(record.ids[t] == sample.tokens.ids[t]);
    }
  }
}

TEST_CASE("filler marks nothing") {
  Fixture f;
  RecordStream stream({{Task::kFiller, 1}}, {}, 200, kSeed, f.encoder);
  for (int i = 0; i < 20; ++i) CHECK(f.marked(stream.next()).empty());
}

// A marked token and the one before it stood side by side earlier, so that both what to copy and
// from where is known.
TEST_CASE("marked tokens of repeat follow the token they followed before") {
  Fixture f(true);
  RecordStream stream({{Task::kRepeat, 1}}, {}, 256, kSeed, f.encoder);
  size_t marked = 0, total = 0;
  for (int i = 0; i < 50; ++i) {
    const Record& record = stream.next();
    for (size_t t = 1; t < record.ids.size(); ++t) {
      ++total;
      if (!record.mask[t]) continue;
      ++marked;
      bool before = false;
      for (size_t u = 1; u + 1 < t; ++u)
        before =
            before || (record.ids[u] == record.ids[t] && record.ids[u - 1] == record.ids[t - 1]);
      CHECK(before);
    }
  }
  CHECK(marked * 4 > total);
}

TEST_CASE("a mixture without weight, a length too short and a vocabulary too large are refused") {
  Fixture f;
  CHECK(test::error_of([&] {
          RecordStream({{Task::kPasskey, 0}}, {}, 100, kSeed, f.encoder);
        }).find("weight") != std::string::npos);
  CHECK(test::error_of([&] {
          RecordStream({{Task::kPasskey, 1}}, {}, 8, kSeed, f.encoder);
        }).find("at least") != std::string::npos);
  for (const auto& [file, tokenizer] : test::real_vocabularies()) {
    if (tokenizer->vocab_size() <= 65536) continue;
    PieceEncoder encoder(*tokenizer);
    CHECK(test::error_of([&] {
            RecordStream({{Task::kPasskey, 1}}, {}, 100, kSeed, encoder);
          }).find("16 bits") != std::string::npos);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
