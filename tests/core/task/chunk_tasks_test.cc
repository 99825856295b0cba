// Tasks whose context is made of chunks: answers need two of them, wherever these stand.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/task/task.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/error_of.h"

namespace kvasir {
namespace {

std::vector<Sample> samples(Task task, uint32_t length, const TaskOptions& options = {},
                            bool add_bos = false) {
  const auto tokenizer = test::small_vocabulary(add_bos);
  PieceEncoder encoder(*tokenizer);
  TaskGenerator generator(task, options, length, encoder);
  std::vector<Sample> out;
  for (uint64_t i = 0; i < 30; ++i) out.push_back(generator.make(3, i));
  return out;
}

size_t chunk_of(const Sample& sample, size_t byte) {
  size_t i = 0;
  while (sample.chunks.at(i).end <= byte) ++i;
  return i;
}

}  // namespace

TEST_SUITE_BEGIN("core/task/chunk_tasks");

TEST_CASE("chunks lie side by side from the start to the question, in bytes and in tokens") {
  for (const Task task : {Task::kChunkChain, Task::kChunkBorder})
    for (const uint32_t n_chunks : {4u, 8u})
      for (const bool add_bos : {false, true}) {
        TaskOptions options;
        options.chunks = n_chunks;
        for (const Sample& sample : samples(task, 900, options, add_bos)) {
          CAPTURE(sample.text);
          REQUIRE(sample.chunks.size() == n_chunks);
          size_t byte = 0, token = add_bos ? 1 : 0;
          for (size_t i = 0; i < n_chunks; ++i) {
            CHECK(sample.chunks[i].begin == byte);
            CHECK(sample.chunks[i].end > byte);
            byte = sample.chunks[i].end;
            const Span tokens = sample.chunk_tokens(i);
            CHECK(tokens.begin == token);
            CHECK(tokens.end > token);
            token = tokens.end;
            // Between tokens; the last chunk may share a full stop and line end with the question.
            if (i + 1 < n_chunks) CHECK(sample.tokens.ends[token - 1] == byte);
          }
          CHECK(byte == sample.turns[0].question.begin);
          CHECK(token == sample.token_span(sample.turns[0].question).begin);
        }
      }
}

TEST_CASE("a needle lies across each border, and nothing in its second chunk names it") {
  std::set<size_t> asked_at;
  for (const Sample& sample : samples(Task::kChunkBorder, 900)) {
    CAPTURE(sample.text);
    REQUIRE(sample.planted.size() == 7);
    for (size_t i = 0; i < 7; ++i) {
      const Planted& p = sample.planted[i];
      CHECK(sample.chunks[i].end + 1 == p.value.begin);
      CHECK(sample.text.substr(sample.chunks[i].end - 3, 3) == " is");
      CHECK(sample.text[sample.chunks[i].end] == ' ');
      if (p.turn != 0) continue;
      asked_at.insert(i);
      CHECK(sample.bytes(sample.turns[0].answer) == std::string(" ").append(sample.bytes(p.value)));
      const std::string name =
          sample.text.substr(p.bytes.begin, sample.chunks[i].end - p.bytes.begin);
      CHECK(sample.bytes(sample.turns[0].question).ends_with(name.substr(4)));
    }
  }
  CHECK(asked_at.size() > 4);
}

TEST_CASE("a chain's statements stand in two chunks, in either order") {
  size_t n_forward = 0;
  for (const Sample& sample : samples(Task::kChunkChain, 900)) {
    CAPTURE(sample.text);
    REQUIRE(sample.planted.size() == 4);
    std::set<size_t> used;
    std::string person_key, key_code;
    size_t person_at = 0, code_at = 0;
    for (const Planted& p : sample.planted) {
      const size_t chunk = chunk_of(sample, p.bytes.begin);
      CHECK(chunk_of(sample, p.bytes.end - 1) == chunk);
      CHECK(used.insert(chunk).second);
      if (p.turn != 0) continue;
      const std::string text = sample.bytes(p.bytes);
      if (text.find(" opens with ") == text.npos) {
        person_key = sample.bytes(p.value);
        person_at = chunk;
        const std::string person = text.substr(4, text.find(" has the") - 4);
        CHECK(sample.bytes(sample.turns[0].question).find("of the " + person + " opens with") !=
              std::string::npos);
      } else {
        key_code = sample.bytes(p.value);
        code_at = chunk;
        CHECK(text.substr(4, text.find(" key opens") - 4).size() > 0);
      }
    }
    CHECK(sample.text.find("The " + person_key + " key opens with " + key_code + ".") !=
          std::string::npos);
    CHECK(sample.bytes(sample.turns[0].answer) == std::string(" ").append(key_code));
    n_forward += person_at < code_at;
  }
  CHECK(n_forward > 5);
  CHECK(n_forward < 25);
}

TEST_CASE("too few chunks are refused") {
  TaskOptions options;
  options.chunks = 3;
  CHECK(test::error_of([&] { samples(Task::kChunkChain, 900, options); }).find("--n-chunks 3") !=
        std::string::npos);
  options.chunks = 1;
  CHECK(test::error_of([&] { samples(Task::kChunkBorder, 900, options); }).find("--n-chunks 1") !=
        std::string::npos);
}

TEST_CASE("tasks of one text have no chunks") {
  for (const Task task : question_tasks()) CHECK(samples(task, 900)[0].chunks.empty());
}

}  // namespace kvasir
