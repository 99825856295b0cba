// Tokenizers over vocabularies made here: the merge procedures as the papers tell them are the
// oracle; and what is wrong in a file is refused.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/model/gguf/gguf_writer.h"
#include "tests/support/temp_dir.h"

using namespace kvasir;

namespace {

using Ids = std::vector<TokenId>;
constexpr Tokenizer::EncodeOptions kNoBos = {.add_bos = false, .parse_special = false};

// Written to a temporary file, since that is the way in.
std::unique_ptr<Tokenizer> tokenizer_of(const GgufWriter& writer) {
  const test::TempDir dir;
  writer.write(dir.path("tokenizer.gguf"), [](size_t, std::span<std::byte>) {});
  return Tokenizer::from_gguf(GgufFile::open(dir.path("tokenizer.gguf")));
}

// GPT-2's alphabet, from its definition: bytes that print in Latin-1 keep their code point, the
// others are numbered from 256 on.
std::vector<std::string> byte_texts() {
  std::vector<std::string> texts;
  int extra = 0;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b > 32 && b < 127) || (b > 160 && b != 173);
    const int code = prints ? b : 256 + extra++;
    texts.push_back(code < 128 ? std::string(1, static_cast<char>(code))
                               : std::string{static_cast<char>(0xC0 + code / 64),
                                             static_cast<char>(0x80 + code % 64)});
  }
  return texts;
}

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  std::map<std::string, GgufWriter::Value> more;

  TokenId add(const std::string& text, int32_t type = 1, float score = 0) {
    texts.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<TokenId>(texts.size()) - 1;
  }
  GgufWriter bpe(const std::string& pre) const {
    GgufWriter writer;
    writer.set("tokenizer.ggml.model", std::string("gpt2"));
    if (!pre.empty()) writer.set("tokenizer.ggml.pre", pre);
    writer.set("tokenizer.ggml.merges", merges);
    return finish(std::move(writer));
  }
  GgufWriter spm() const {
    GgufWriter writer;
    writer.set("tokenizer.ggml.model", std::string("llama"));
    writer.set("tokenizer.ggml.scores", scores);
    return finish(std::move(writer));
  }
  GgufWriter finish(GgufWriter writer) const {
    writer.set("tokenizer.ggml.tokens", texts);
    if (!types.empty()) writer.set("tokenizer.ggml.token_type", types);
    for (const auto& [key, value] : more) writer.set(key, value);
    return writer;
  }
};

// 256 bytes and random merges over the letters a to d.
Vocabulary random_bpe(std::mt19937_64& rng) {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  std::vector<std::string> parts = {"a", "b", "c", "d"};
  for (int i = 0; i < 60; ++i) {
    const std::string left = parts[rng() % parts.size()], right = parts[rng() % parts.size()];
    const std::string both = left + right;
    if (std::count(v.texts.begin(), v.texts.end(), both) > 0) continue;
    v.merges.push_back(left + " " + right);
    parts.push_back(both);
    v.add(both);
  }
  return v;
}

// Sennrich et al. 2016, algorithm as printed: join every occurrence of the first pair of the list
// that occurs, from the left, until none does.
std::vector<std::string> merge_by_list(std::vector<std::string> word,
                                       const std::vector<std::string>& merges) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string& merge : merges) {
      const std::string left = merge.substr(0, merge.find(' ')),
                        right = merge.substr(left.size() + 1);
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] += word[i + 1];
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        again = true;
      }
      if (again) break;
    }
  }
  return word;
}

// SentencePiece: join the neighbours whose union scores best, the leftmost of equals.
std::vector<std::string> merge_by_score(std::vector<std::string> word,
                                        const std::map<std::string, float>& score) {
  for (;;) {
    size_t best = word.size();
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto s = score.find(word[i] + word[i + 1]);
      if (s == score.end()) continue;
      if (best == word.size() || s->second > score.at(word[best] + word[best + 1])) best = i;
    }
    if (best == word.size()) return word;
    word[best] += word[best + 1];
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::string random_letters(std::mt19937_64& rng, size_t max, std::string_view alphabet) {
  std::string text(rng() % (max + 1), ' ');
  for (char& c : text) c = alphabet[rng() % alphabet.size()];
  return text;
}

Vocabulary small_spm() {
  Vocabulary v;
  v.add("<unk>", 2);
  v.add("<s>", 3);
  v.add("</s>", 3);
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    v.add(text, 6);
  }
  return v;
}

std::string message_of(const GgufWriter& writer) {
  try {
    tokenizer_of(writer);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::kInput);
    return e.what();
  }
  FAIL("accepted");
  return {};
}

void check_says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

}  // namespace

TEST_SUITE_BEGIN("core/model/tokenizer");

TEST_CASE("byte-level BPE merges as the list says") {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 20; ++round) {
    const Vocabulary v = random_bpe(rng);
    const auto tokenizer = tokenizer_of(v.bpe("gpt-2"));
    for (int i = 0; i < 100; ++i) {
      const std::string text = random_letters(rng, 30, "aabcd");
      std::vector<std::string> letters;
      for (const char c : text) letters.emplace_back(1, c);
      Ids expected;
      for (const auto& part : merge_by_list(letters, v.merges)) {
        expected.push_back(tokenizer->find(part));
      }
      CHECK(tokenizer->encode(text, {}) == expected);
    }
  }
}

TEST_CASE("SentencePiece merges by score") {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 20; ++round) {
    Vocabulary v = small_spm();
    std::map<std::string, float> score;
    std::vector<std::string> parts = {"\u2581", "a", "b", "c"};
    for (const auto& p : parts) v.add(p, 1, -1000);
    for (int i = 0; i < 60; ++i) {
      const std::string both = parts[rng() % parts.size()] + parts[rng() % parts.size()];
      // In even rounds no piece reaches from one word to the next, as in real vocabularies.
      const size_t mark = both.rfind("\u2581");
      const bool reaches = mark != std::string::npos && both.find_first_of("abc") < mark;
      if (score.contains(both) || (round % 2 == 0 && reaches)) continue;
      score[both] = static_cast<float>(-static_cast<int>(rng() % 40));  // equals are likely
      v.add(both, 1, score[both]);
      parts.push_back(both);
    }
    const auto tokenizer = tokenizer_of(v.spm());
    for (int i = 0; i < 100; ++i) {
      const std::string text = random_letters(rng, 30, "aabc  ");
      std::vector<std::string> letters;
      if (!text.empty()) letters.emplace_back("\u2581");
      for (const char c : text) letters.push_back(c == ' ' ? "\u2581" : std::string(1, c));
      Ids expected = {1};
      for (const auto& part : merge_by_score(letters, score)) {
        expected.push_back(tokenizer->find(part));
      }
      CAPTURE(text);
      CHECK(tokenizer->encode(text, {}) == expected);
    }
  }
}

TEST_CASE("any bytes come back, under every pre-tokenizer") {
  std::mt19937_64 rng(3);
  const Vocabulary v = random_bpe(rng);
  for (const char* pre :
       {"llama-bpe", "qwen2", "gpt-2", "default", "deepseek-llm", "deepseek-coder", ""}) {
    const auto tokenizer = tokenizer_of(v.bpe(pre));
    CHECK(tokenizer->pre_name() == (*pre ? pre : "default"));
    for (int i = 0; i < 1000; ++i) {
      std::string text(rng() % 40, '\0');
      for (char& c : text) c = static_cast<char>(rng() % 3 ? rng() % 256 : 'a' + rng() % 4);
      CHECK(tokenizer->decode(tokenizer->encode(text, {})) == text);
    }
  }
}

TEST_CASE("a merge may pass through a text that is no token, and llama-bpe skips merges") {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  const TokenId abc = v.add("abc"), cba = v.add("cba");
  v.merges = {"a b", "ab c"};  // "ab" is not in the vocabulary, "cba" is in no merge
  const auto gpt2 = tokenizer_of(v.bpe("gpt-2"));
  CHECK(gpt2->encode("abc", {}) == Ids{abc});
  CHECK(gpt2->encode("abd", {}) == Ids{'a', 'b', 'd'});
  CHECK(gpt2->encode("cba", {}) == Ids{'c', 'b', 'a'});
  CHECK(tokenizer_of(v.bpe("llama-bpe"))->encode("cba", {}) == Ids{cba});
}

TEST_CASE("a byte without a token becomes <unk>, else U+FFFD, else nothing") {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  v.texts[0xFF] = "nothing";
  CHECK(tokenizer_of(v.bpe("gpt-2"))->encode("a\xFF", {}) == Ids{'a', 0xEF, 0xBF, 0xBD});
  v.texts[0xEF] = "none";
  CHECK(tokenizer_of(v.bpe("gpt-2"))->encode("a\xFF", {}) == Ids{'a'});
  v.more["tokenizer.ggml.unknown_token_id"] = 5u;
  CHECK(tokenizer_of(v.bpe("gpt-2"))->encode("a\xFF", {}) == Ids{'a', 5});
}

TEST_CASE("special tokens: the longest that starts first; user-defined ones always") {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  const TokenId end = v.add("<e>", 3), longer = v.add("<e>!", 3), user = v.add("<u>", 4);
  const auto t = tokenizer_of(v.bpe("gpt-2"));
  const Tokenizer::EncodeOptions special = {.parse_special = true};
  CHECK(t->encode("a<e>b", special) == Ids{'a', end, 'b'});
  CHECK(t->encode("<e>!<e><u>", special) == Ids{longer, end, user});
  CHECK(t->encode("<e><u>", {}) == Ids{'<', 'e', '>', user});
  CHECK(t->decode(Ids{'a', end, user}) == "a<u>");
  CHECK(t->decode(Ids{'a', end, user}, true) == "a<e><u>");
}

TEST_CASE("of two tokens with one text the ordinary one is found") {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  v.texts[0] = "ab";
  v.types[0] = 3;
  const TokenId ab = v.add("ab");
  v.add("ab");
  v.merges = {"a b"};
  const auto t = tokenizer_of(v.bpe("gpt-2"));
  CHECK(t->find("ab") == ab);
  CHECK(t->encode("ab", {}) == Ids{ab});
  CHECK(t->find("ba") == kNoToken);
}

TEST_CASE("SentencePiece puts a space in front of text and of text after a special token") {
  Vocabulary v = small_spm();
  const TokenId space = v.add("\u2581"), a = v.add("a"), word = v.add("\u2581a", 1, -1);
  const Tokenizer::EncodeOptions special = {.parse_special = true};
  const auto t = tokenizer_of(v.spm());
  CHECK(t->encode("a", {}) == Ids{1, word});
  CHECK(t->encode("", {}) == Ids{1});
  CHECK(t->encode(" ", {}) == Ids{1, space, space});
  CHECK(t->encode("a</s>a", special) == Ids{1, word, 2, word});
  CHECK(t->encode("\xC3", kNoBos) == Ids{space, 3 + 0xC3});
  CHECK(t->decode(Ids{1, word, word}) == "a a");
  v.more["tokenizer.ggml.add_space_prefix"] = false;
  v.more["tokenizer.ggml.add_bos_token"] = false;
  const auto bare = tokenizer_of(v.spm());
  CHECK(bare->encode("a a", {}) == Ids{a, word});
  CHECK(bare->decode(Ids{word, a}) == " aa");
}

TEST_CASE("plain text never becomes a control, byte or unknown token") {
  Vocabulary v = small_spm();
  for (const char* text : {"<", "/", "s", ">", "0", "x", "A", "\u2581", "</", "</s", "<0", "<0x"}) {
    v.add(text, 1, -1);
  }
  const auto t = tokenizer_of(v.spm());
  for (const TokenId id : t->encode("</s><s><0x0A><unk>", kNoBos)) CHECK(id > 2);
  CHECK(t->decode(t->encode("</s><s><0x0A>", {})) == "</s><s><0x0A>");
}

TEST_CASE("BOS and the ends of generation follow the file, then the family's habit") {
  Vocabulary v;
  for (const auto& text : byte_texts()) v.add(text);
  const TokenId bos = v.add("<bos>", 3), eos = v.add("<end>", 3), eot = v.add("<turn>", 3);
  const TokenId im_end = v.add("<|im_end|>", 3), text_end = v.add("<|eot_id|>", 1);
  v.more["tokenizer.ggml.bos_token_id"] = static_cast<uint32_t>(bos);
  v.more["tokenizer.ggml.eos_token_id"] = static_cast<uint32_t>(eos);
  v.more["tokenizer.ggml.eot_token_id"] = static_cast<uint32_t>(eot);
  CHECK(tokenizer_of(v.bpe("llama-bpe"))->encode("a", {}) == Ids{bos, 'a'});
  CHECK(tokenizer_of(v.bpe("llama-bpe"))->encode("a", kNoBos) == Ids{'a'});
  const auto t = tokenizer_of(v.bpe("qwen2"));
  CHECK(t->encode("a", {}) == Ids{'a'});
  for (const TokenId id : {eos, eot, im_end}) CHECK(t->is_end_of_generation(id));
  // A text that merely looks like one, being no control token, is none.
  for (const TokenId id : {bos, text_end, TokenId{'a'}}) CHECK_FALSE(t->is_end_of_generation(id));
  v.more["tokenizer.ggml.add_bos_token"] = true;
  CHECK(tokenizer_of(v.bpe("qwen2"))->encode("a", {}) == Ids{bos, 'a'});
  v.more["tokenizer.ggml.bos_token_id"] = 4294967295u;
  const auto none = tokenizer_of(v.bpe("qwen2"));
  CHECK(none->bos() == kNoToken);
  CHECK_FALSE(none->add_bos());
  CHECK(none->encode("a", {}) == Ids{'a'});
}

TEST_CASE("a file without token types tells bytes and special tokens by their texts and ids") {
  Vocabulary v = small_spm();
  v.add("\u2581", 1, -1);
  v.types.clear();
  const auto t = tokenizer_of(v.spm());
  CHECK(t->encode("\n", kNoBos) == Ids{259, 3 + 10});
  CHECK(t->decode(Ids{1, 3 + 10, 2}) == "\n");
}

TEST_CASE("what is wrong in a file is said with the file and the key") {
  Vocabulary v = small_spm();
  check_says(message_of(v.bpe("no-such")), {"/tokenizer.gguf: ", "'no-such'", "qwen2"});
  check_says(message_of(GgufWriter()), {"tokenizer.ggml.model"});
  GgufWriter other;
  other.set("tokenizer.ggml.model", std::string("bert"));
  check_says(message_of(other), {"'bert'", "llama", "gpt2"});
  GgufWriter no_tokens;
  no_tokens.set("tokenizer.ggml.model", std::string("llama"));
  check_says(message_of(no_tokens), {"tokenizer.ggml.tokens"});

  Vocabulary bad = v;
  bad.scores.pop_back();
  check_says(message_of(bad.spm()), {"tokenizer.ggml.scores", "258", "259"});
  bad = v;
  bad.types.pop_back();
  check_says(message_of(bad.spm()), {"tokenizer.ggml.token_type", "258", "259"});
  bad = v;
  bad.more["tokenizer.ggml.eos_token_id"] = 259u;
  check_says(message_of(bad.spm()), {"tokenizer.ggml.eos_token_id", "259"});
  for (const char* merge : {"", "ab", "a ", " b"}) {
    bad = v;
    bad.merges = {"a b", merge};
    check_says(message_of(bad.bpe("gpt-2")), {"tokenizer.ggml.merges[1]"});
  }
}

TEST_CASE("ids outside the vocabulary are refused") {
  const auto t = tokenizer_of(small_spm().spm());
  for (const TokenId id : {-1, 259, INT32_MAX, INT32_MIN}) {
    CHECK_THROWS_AS(t->piece(id), Error);
    CHECK_THROWS_AS(t->decode(Ids{id}), Error);
  }
}

TEST_CASE("scores that are not numbers do no harm") {
  Vocabulary v = small_spm();
  for (const char* text : {"a", "b", "\u2581"}) v.add(text, 1, NAN);
  const TokenId ab = v.add("ab", 1, NAN);
  v.add("ba", 1, INFINITY);
  const auto t = tokenizer_of(v.spm());
  CHECK(t->decode(t->encode("abbaab", {})) == "abbaab");
  CHECK(t->encode("ab", kNoBos).back() == ab);
}

TEST_CASE("one tokenizer serves several threads") {
  std::mt19937_64 rng(4);
  const auto t = tokenizer_of(random_bpe(rng).bpe("qwen2"));
  const std::string text = random_letters(rng, 20000, "abcd  1\n");
  const Ids expected = t->encode(text, {});
  std::vector<int> same(4);
  std::vector<std::thread> threads;
  for (int& ok : same) threads.emplace_back([&] { ok = t->encode(text, {}) == expected; });
  for (auto& thread : threads) thread.join();
  CHECK(same == std::vector<int>(4, 1));
}

TEST_SUITE_END();
