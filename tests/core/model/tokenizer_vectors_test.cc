// Tokenizers against the vocabularies and vectors of real models: llama.cpp's 46 cases each, round
// trips, long texts.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "core/model/tokenizer/tokenizer.h"
#include "tests/support/data.h"

using namespace kvasir;

namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<Tokenizer> load(const fs::path& path) {
  return Tokenizer::from_gguf(GgufFile::open(path.string()));
}

constexpr Tokenizer::EncodeOptions kNoBos = {.add_bos = false, .parse_special = false};

// `vectors`.inp holds texts, `vectors`.out a line of ids for each. Cases that differ.
int differing_cases(const Tokenizer& tokenizer, const fs::path& vectors) {
  constexpr std::string_view kMark = "\n__ggml_vocab_test__\n";
  const std::string texts = read(vectors.string() + ".inp");
  std::istringstream lines(read(vectors.string() + ".out"));
  int n = 0, differ = 0;
  size_t at = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const size_t end = texts.find(kMark, at);
    REQUIRE(end != std::string::npos);
    const std::string text = texts.substr(at, end - at);
    at = end + kMark.size();
    std::istringstream numbers(line);
    const Ids expected{std::istream_iterator<TokenId>(numbers), {}};
    const Ids got = tokenizer.encode(text, kNoBos);
    CAPTURE(text);
    CHECK(got == expected);
    CHECK(tokenizer.decode(got) == text);
    differ += got != expected;
  }
  CHECK(n == 46);
  return differ;
}

std::string random_bytes(std::mt19937_64& rng) {
  // Plain bytes, and pieces that make well-formed and broken UTF-8, spaces and contractions likely.
  constexpr std::string_view kParts[] = {
      " ",          "  ",       "\n",           "'ll",    "12",         "word",  "\u4E2D",
      "\U0001F600", "\xE4\xB8", "\xED\xA0\x80", "\u00E9", "<|im_end|>", "\u2581"};
  std::string text;
  for (size_t n = rng() % 24; n > 0; --n) {
    if (rng() % 2 == 0) {
      text.push_back(static_cast<char>(rng() % 256));
    } else {
      text += kParts[rng() % std::size(kParts)];
    }
  }
  return text;
}

// Of this process: a busy machine does not make a test fail.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text, Ids& ids) {
  const double start = cpu_seconds();
  ids = tokenizer.encode(text, kNoBos);
  return cpu_seconds() - start;
}

std::string joined_pieces(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (const TokenId id : ids) out += tokenizer.piece(id);
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/tokenizer");

KVASIR_DATA_TEST_CASE("the 46 cases of llama.cpp encode to its ids and decode to the text") {
  KVASIR_REQUIRE_DATA(data);
  const auto folder = data / "tokenizers/llama.cpp-vocab";
  for (const char* name : {"llama-spm", "phi-3", "gpt-2", "deepseek-coder", "deepseek-llm"}) {
    CAPTURE(name);
    const auto file = folder / ("ggml-vocab-" + std::string(name) + ".gguf");
    CHECK(differing_cases(*load(file), file) == 0);
  }
  const auto qwen2 = load(data / "tokenizers/qwen2/qwen2-vocab.gguf");
  CHECK(differing_cases(*qwen2, folder / "ggml-vocab-qwen2.gguf") == 0);
}

KVASIR_DATA_TEST_CASE(
    "further vocabularies of llama.cpp, where the data has them, encode to its ids") {
  KVASIR_REQUIRE_DATA(data);
  for (const char* name : {"falcon", "mpt", "refact", "starcoder"}) {
    CAPTURE(name);
    const auto file =
        data / "tokenizers/llama.cpp-vocab" / ("ggml-vocab-" + std::string(name) + ".gguf");
    if (!fs::exists(file)) {
      MESSAGE("SKIPPED: no ", file.string());
      continue;
    }
    CHECK(differing_cases(*load(file), file) == 0);
  }
}

KVASIR_DATA_TEST_CASE("any bytes come back from encoding and decoding") {
  KVASIR_REQUIRE_DATA(data);
  for (const char* file :
       {"tokenizers/qwen2/qwen2-vocab.gguf", "tokenizers/llama.cpp-vocab/ggml-vocab-gpt-2.gguf"}) {
    const auto tokenizer = load(data / file);
    std::mt19937_64 rng(5);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_bytes(rng);
      const Ids ids = tokenizer->encode(text, kNoBos);
      CHECK(tokenizer->decode(ids) == text);
      CHECK(joined_pieces(*tokenizer, ids) == text);
    }
  }
}

KVASIR_DATA_TEST_CASE("SentencePiece gives back any bytes but its own space mark") {
  KVASIR_REQUIRE_DATA(data);
  for (const char* file : {"tokenizers/llama.cpp-vocab/ggml-vocab-llama-spm.gguf",
                           "models/stories260K.gguf", "models/babyllama-tok361.f32.gguf"}) {
    const auto tokenizer = load(data / file);
    std::mt19937_64 rng(6);
    for (int i = 0; i < 1000; ++i) {
      std::string text = random_bytes(rng);
      for (size_t at; (at = text.find("\u2581")) != std::string::npos;) text.erase(at, 3);
      CHECK(tokenizer->decode(tokenizer->encode(text, {})) == text);
    }
  }
}

KVASIR_DATA_TEST_CASE("bytes that deepseek-llm has no token for become U+FFFD") {
  KVASIR_REQUIRE_DATA(data);
  const auto tokenizer = load(data / "tokenizers/llama.cpp-vocab/ggml-vocab-deepseek-llm.gguf");
  CHECK(tokenizer->decode(tokenizer->encode("a\xFFz\xE4", kNoBos)) == "a\uFFFDz\xE4");
}

KVASIR_DATA_TEST_CASE("stories260K starts its text without a space; streamed pieces keep it") {
  KVASIR_REQUIRE_DATA(data);
  const auto tokenizer = load(data / "models/stories260K.gguf");
  // The ids of the golden greedy run, of which the prompt is the first.
  const Ids ids = {1, 403, 407, 261, 378};
  CHECK(tokenizer->encode("Once upon a time", {}) == ids);
  CHECK(tokenizer->decode(ids) == "Once upon a time");
  CHECK(joined_pieces(*tokenizer, ids) == " Once upon a time");
  const std::string text = read(data / "golden/stories260K.greedy200.expected.txt");
  CHECK(tokenizer->decode(tokenizer->encode(text, {})) == text);
  CHECK(tokenizer->decode(Ids{1, 403}, true) == "<s> Once");
  CHECK(tokenizer->decode(Ids{}).empty());
}

KVASIR_DATA_TEST_CASE("a vocabulary without byte tokens maps unknown characters to <unk>") {
  KVASIR_REQUIRE_DATA(data);
  const auto tokenizer = load(data / "models/babyllama-tok105.f32.gguf");
  REQUIRE(tokenizer->unk() == 0);
  const TokenId space = tokenizer->find("\u2581"), a = tokenizer->find("a");
  CHECK(tokenizer->encode("a\u4E2D\na", {}) == Ids{1, space, a, 0, 0, a});
  CHECK(tokenizer->encode("\xFF", {}) == Ids{1, space, 0});
  CHECK(tokenizer->piece(0).empty());
  CHECK(tokenizer->piece(0, true) == "<unk>");
}

KVASIR_DATA_TEST_CASE("special ids are those of the file") {
  KVASIR_REQUIRE_DATA(data);
  const auto qwen2 = load(data / "tokenizers/qwen2/qwen2-vocab.gguf");
  CHECK(qwen2->model_name() == "gpt2");
  CHECK(qwen2->pre_name() == "qwen2");
  CHECK(qwen2->vocab_size() == 151936);
  CHECK(qwen2->bos() == 151643);
  CHECK(qwen2->eos() == 151645);
  CHECK(qwen2->unk() == kNoToken);
  CHECK_FALSE(qwen2->add_bos());
  for (const TokenId id : {151643, 151645}) CHECK(qwen2->is_end_of_generation(id));
  for (const TokenId id : {151644, 0, kNoToken}) CHECK_FALSE(qwen2->is_end_of_generation(id));
  CHECK(qwen2->encode("<|im_start|>a<|im_end|>\n", {.parse_special = true}) ==
        Ids{151644, 64, 151645, 198});
  CHECK(qwen2->encode("<|im_end|>", {}).size() > 1);
  CHECK(qwen2->decode(Ids{151644, 64, 151645}) == "a");
  CHECK(qwen2->decode(Ids{151644, 64, 151645}, true) == "<|im_start|>a<|im_end|>");

  const auto gpt2 = load(data / "tokenizers/llama.cpp-vocab/ggml-vocab-gpt-2.gguf");
  CHECK_FALSE(gpt2->add_bos());
  CHECK(gpt2->is_end_of_generation(50256));
  const auto coder = load(data / "tokenizers/llama.cpp-vocab/ggml-vocab-deepseek-coder.gguf");
  CHECK(coder->add_bos());
  CHECK(coder->encode("", {}) == Ids{32013});
  CHECK(coder->encode("\u00F5", kNoBos) == Ids{32000});  // user-defined: always found whole
  CHECK(coder->decode(Ids{32000}) == "\u00F5");
  const auto stories = load(data / "models/stories260K.gguf");
  CHECK(stories->add_bos());
  CHECK(stories->is_end_of_generation(2));
  CHECK(stories->encode("</s>", {.add_bos = false, .parse_special = true}) == Ids{2});
  CHECK(stories->encode("</s>", kNoBos).size() > 1);
}

KVASIR_DATA_TEST_CASE(
    "War and Peace takes seconds and as many tokens as other implementations give") {
  KVASIR_REQUIRE_DATA(data);
  const std::string text = read(data / "text/war-and-peace.txt");
  const struct {
    const char* file;
    size_t n_tokens;  // from the data's README: llama.cpp and an independent script
  } cases[] = {{"tokenizers/qwen2/qwen2-vocab.gguf", 773011},
               {"tokenizers/llama.cpp-vocab/ggml-vocab-llama-spm.gguf", 870566},
               {"models/stories260K.gguf", 1869079}};
  for (const auto& c : cases) {
    const auto tokenizer = load(data / c.file);
    Ids ids;
    const double seconds = seconds_to_encode(*tokenizer, text, ids);
    MESSAGE(std::string(c.file), ": ", seconds, " s");
    CHECK(ids.size() == c.n_tokens);
    CHECK(seconds < 30);  // sanitizers are ten times slower than a release build
    CHECK(tokenizer->decode(ids) == text);
  }
}

KVASIR_DATA_TEST_CASE("a long run of one letter takes no more than its length") {
  KVASIR_REQUIRE_DATA(data);
  const struct {
    const char* file;
    char c;
  } cases[] = {{"tokenizers/qwen2/qwen2-vocab.gguf", 'a'},
               {"tokenizers/llama.cpp-vocab/ggml-vocab-llama-spm.gguf", 'a'}};
  for (const auto& c : cases) {
    const auto tokenizer = load(data / c.file);
    Ids ids;
    const std::string text(size_t{1} << 20, c.c);
    CHECK(seconds_to_encode(*tokenizer, text, ids) < 60);  // squared: an hour
    CHECK(tokenizer->decode(ids) == text);
  }
}

KVASIR_DATA_TEST_CASE("many special tokens after a long text cost no more than each alone") {
  KVASIR_REQUIRE_DATA(data);
  const auto tokenizer = load(data / "tokenizers/llama.cpp-vocab/ggml-vocab-llama-spm.gguf");
  std::string text = read(data / "text/pride-and-prejudice.txt");
  for (int i = 0; i < 100000; ++i) text += "</s>a";
  const double start = cpu_seconds();
  const Ids ids = tokenizer->encode(text, {.parse_special = true});
  const double seconds = cpu_seconds() - start;
  CHECK(std::count(ids.begin(), ids.end(), 2) == 100000);
  CHECK(seconds < 10);
}

TEST_SUITE_END();
