// Encoding by pieces gives what encoding the whole text gives.
// SPDX-License-Identifier: Apache-2.0
#include "core/task/piece_encoder.h"

#include <doctest/doctest.h>

#include "core/model/synthetic/random_model.h"
#include "core/task/task.h"
#include "tests/core/task/least_length.h"
#include "tests/core/task/vocabularies.h"
#include "tests/support/data.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace kvasir {
namespace {

TEST_SUITE_BEGIN("core/task/piece_encoder");

void check_encodes(const Tokenizer& tokenizer, PieceEncoder& encoder, const std::string& text) {
  CAPTURE(text);
  const EncodedText pieces = encoder.encode(text);
  CHECK(pieces.ids == tokenizer.encode(text, {}));
  REQUIRE(pieces.ends.size() == pieces.ids.size());
  // Every token stands for its bytes, or for a part of a space that SentencePiece added.
  size_t begin = 0;
  for (size_t i = 0; i < pieces.ids.size(); ++i) {
    const std::string bytes = text.substr(begin, pieces.ends[i] - begin);
    CHECK(tokenizer.piece(pieces.ids[i], false).ends_with(bytes));
    begin = pieces.ends[i];
  }
  CHECK(begin == text.size());
}

void check_tasks(const Tokenizer& tokenizer) {
  PieceEncoder encoder(tokenizer);
  for (const Task task : all_tasks()) {
    CAPTURE(std::string(name(task)));
    TaskGenerator generator(task, {}, std::max(700u, test::least_length(task, encoder)), encoder);
    for (uint64_t i = 0; i < 5; ++i) {
      const Sample sample = generator.make(11, i);
      check_encodes(tokenizer, encoder, sample.text);
      // What a user who types the prompt gets is what the sample was measured with.
      const std::string prompt = sample.prompt();
      const auto ids = tokenizer.encode(prompt, {});
      const std::vector<TokenId> first(
          sample.tokens.ids.begin(),
          sample.tokens.ids.begin() + static_cast<ptrdiff_t>(ids.size()));
      CHECK(ids == first);
      if (!sample.turns.empty())
        CHECK(ids.size() == sample.token_span(sample.turns[0].answer).begin);
    }
  }
}

TEST_CASE("pieces and whole agree: the small vocabulary, with and without BOS") {
  check_tasks(*test::small_vocabulary(false));
  check_tasks(*test::small_vocabulary(true));
}

KVASIR_DATA_TEST_CASE("pieces and whole agree: real vocabularies") {
  KVASIR_REQUIRE_DATA(data);
  for (const auto& [file, tokenizer] : test::real_vocabularies()) {
    CAPTURE(file);
    check_tasks(*tokenizer);
  }
}

TEST_CASE("pieces and whole agree: vocabularies of trained models") {
  for (const auto& [file, tokenizer] : test::trained_vocabularies()) {
    CAPTURE(file);
    check_tasks(*tokenizer);
  }
}

TEST_CASE("counting a text is encoding it in the middle of another") {
  const auto tokenizer = test::small_vocabulary();
  PieceEncoder encoder(*tokenizer);
  const std::string before = "The river was calm.", text = " A dog slept.\nkey amber lamp=4711";
  CHECK(encoder.count(text) ==
        encoder.encode(before + text).ids.size() - encoder.encode(before).ids.size());
  CHECK(encoder.count("") == 0);
}

KVASIR_DATA_TEST_CASE("a vocabulary that cannot write the text is refused") {
  KVASIR_REQUIRE_DATA(data);
  const auto file = GgufFile::open((data / "models/babyllama-tok105.f32.gguf").string());
  const auto tokenizer = Tokenizer::from_gguf(file);
  PieceEncoder encoder(*tokenizer);
  const std::string message = test::error_of([&] { encoder.encode("line\nend"); });
  CHECK(message.find("cannot write") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace kvasir
