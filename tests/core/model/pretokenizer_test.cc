// Pre-tokenizer expressions: expected cuts, an oracle for ASCII written with plain loops, cost.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/pretokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "core/error.h"
#include "tests/core/model/pretokenizer_golden.h"
#include "tests/support/data.h"

using namespace kvasir;

namespace {

using Pieces = std::vector<std::string>;

Pieces cut(const Pretokenizer& pre, std::string_view text) {
  Pieces pieces;
  size_t at = 0;
  for (const size_t end : pre.split(text)) {
    REQUIRE(end > at);
    REQUIRE(end <= text.size());
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  CHECK(at == text.size());
  return pieces;
}

Pieces cut(const char* name, std::string_view text) { return cut(Pretokenizer(name, "f"), text); }

Pieces cut_by_sizes(std::string_view text, const char* sizes) {
  Pieces pieces;
  std::istringstream numbers(sizes);
  for (size_t n = 0; numbers >> n; text.remove_prefix(n)) {
    REQUIRE(n <= text.size());
    pieces.emplace_back(text.substr(0, n));
  }
  CHECK(text.empty());
  return pieces;
}

bool space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool newline(char c) { return c == '\r' || c == '\n'; }
bool other(char c) { return !space(c) && !letter(c) && !digit(c); }

// Length of 's 't 're 've 'm 'll 'd at the start of t, else 0.
size_t contraction(std::string_view t, bool any_case) {
  for (const std::string_view c : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (t.size() < c.size()) continue;
    bool same = true;
    for (size_t i = 0; i < c.size(); ++i) {
      const char x =
          any_case ? static_cast<char>(std::tolower(static_cast<unsigned char>(t[i]))) : t[i];
      same = same && x == c[i];
    }
    if (same) return c.size();
  }
  return 0;
}

template <class Is>
size_t run(std::string_view t, size_t from, Is is) {
  size_t n = from;
  while (n < t.size() && is(t[n])) ++n;
  return n - from;
}

// A run of spaces gives its last one to the text that follows it.
size_t spaces(std::string_view t) {
  const size_t n = run(t, 0, space);
  return n < t.size() && n > 1 ? n - 1 : n;
}

// First piece of ASCII text by the rules of Llama 3 and Qwen2, told as a program.
size_t tiktoken_piece(std::string_view t, size_t max_digits) {
  if (const size_t n = contraction(t, true)) return n;
  if (letter(t[0])) return run(t, 0, letter);
  if (!newline(t[0]) && !digit(t[0]) && run(t, 1, letter) > 0) return 1 + run(t, 1, letter);
  if (digit(t[0])) return std::min(max_digits, run(t, 0, digit));
  const size_t blank = t[0] == ' ' ? 1 : 0;
  if (const size_t n = run(t, blank, other)) return blank + n + run(t, blank + n, newline);
  size_t last_newline = 0;
  for (size_t i = 0; i < t.size() && space(t[i]); ++i)
    last_newline = newline(t[i]) ? i + 1 : last_newline;
  return last_newline > 0 ? last_newline : spaces(t);
}

size_t gpt2_piece(std::string_view t) {
  if (const size_t n = contraction(t, false)) return n;
  const size_t blank = t[0] == ' ' ? 1 : 0;
  if (const size_t n = run(t, blank, letter)) return blank + n;
  if (const size_t n = run(t, blank, digit)) return blank + n;
  if (const size_t n = run(t, blank, other)) return blank + n;
  return spaces(t);
}

template <class First>
Pieces cut_by(std::string_view text, First first) {
  Pieces pieces;
  while (!text.empty()) {
    const size_t n = first(text);
    pieces.emplace_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return pieces;
}

std::string random_ascii(std::mt19937_64& rng) {
  constexpr std::string_view kAlphabet = "aBstrevmld'''   \t\n\n\r\r019.,!-_";
  std::string text(rng() % 40, ' ');
  for (char& c : text) c = kAlphabet[rng() % kAlphabet.size()];
  return text;
}

// Of this process: a busy machine does not make a test fail.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double seconds_to_split(const Pretokenizer& pre, const std::string& text) {
  const double start = cpu_seconds();
  CHECK_FALSE(pre.split(text).empty());
  return cpu_seconds() - start;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/pretokenizer");

TEST_CASE("an unknown name is refused with the file, the name and the known ones") {
  try {
    Pretokenizer("klingon", "model.gguf");
    FAIL("accepted");
  } catch (const Error& e) {
    const std::string what = e.what();
    CHECK(e.kind() == ErrorKind::kInput);
    for (const char* part : {"model.gguf", "'klingon'", "llama-bpe", "qwen2", "gpt-2"}) {
      CHECK_MESSAGE(what.find(part) != std::string::npos, what);
    }
  }
}

TEST_CASE("every supported name compiles; some take whole words, some a BOS") {
  std::set<std::string> whole_words, bos;
  for (const std::string& name : Pretokenizer::names()) {
    const Pretokenizer pre(name, "f");
    if (name == "superbpe") {  // its tokens may hold several words
      CHECK(cut(pre, "a, b") == Pieces{"a, b"});
    } else {
      CHECK(cut(pre, "a, b") == Pieces{"a", ",", " b"});
    }
    CHECK(pre.split("").empty());
    if (pre.ignore_merges()) whole_words.insert(name);
    if (pre.adds_bos()) bos.insert(name);
  }
  const std::set<std::string> both = {"falcon-h1", "falcon3",  "lfm2",    "llama-bpe", "llama-v3",
                                      "llama3",    "midm-2.0", "pixtral", "tekken"};
  CHECK(std::includes(whole_words.begin(), whole_words.end(), both.begin(), both.end()));
  CHECK(whole_words.size() == both.size() + 2);
  CHECK(whole_words.count("minicpm5") + whole_words.count("youtu") == 2);
  CHECK(std::includes(bos.begin(), bos.end(), both.begin(), both.end()));
  CHECK(bos.size() == both.size() + 1);
  CHECK(bos.count("chameleon") == 1);
}

TEST_CASE("texts are cut as the published tokenizers cut them") {
  std::set<std::string> checked = {"default",
                                   "deepseek-llm"};  // by the vectors of real vocabularies
  for (const auto& golden : test::kPretokenizerGolden) {
    REQUIRE(golden.sizes.size() == test::kPretokenizerTexts.size());
    std::istringstream names(golden.names);
    for (std::string name; names >> name;) {
      CAPTURE(name);
      const Pretokenizer pre(name, "f");
      CHECK(checked.insert(name).second);
      for (size_t i = 0; i < golden.sizes.size(); ++i) {
        CHECK(cut(pre, test::kPretokenizerTexts[i]) ==
              cut_by_sizes(test::kPretokenizerTexts[i], golden.sizes[i]));
      }
    }
  }
  for (const std::string& name : Pretokenizer::names()) {
    CHECK_MESSAGE(checked.count(name) == 1, name);
  }
}

TEST_CASE("llama-bpe cuts words, digits by three, contractions of any case") {
  CHECK(cut("llama-bpe", "Hello, y'all! I'VE 12345  apples\n\n  x") ==
        Pieces{"Hello", ",", " y", "'all", "!", " I", "'VE", " ", "123", "45", " ", " apples",
               "\n\n", " ", " x"});
  CHECK(cut("llama-bpe", " ------=======\n'''") == Pieces{" ------=======\n", "'''"});
  CHECK(cut("llama-bpe", "我想在apple工作1314151天～") ==
        Pieces{"我想在apple工作", "131", "415", "1", "天", "～"});
  CHECK(cut("llama-bpe", "нещо на Български\u00A0x") ==
        Pieces{"нещо", " на", " Български", "\u00A0x"});
  // U+180E is no white space; U+0085 and U+3000 are.
  CHECK(cut("llama-bpe", "\u180E.") == Pieces{"\u180E."});
  CHECK(cut("llama-bpe", "a\u0085\u3000") == Pieces{"a", "\u0085\u3000"});
}

TEST_CASE("qwen2 cuts digits one by one") {
  CHECK(cut("qwen2", "3.14 15") == Pieces{"3", ".", "1", "4", " ", "1", "5"});
}

TEST_CASE("gpt-2 keeps the space before a word and lower-case contractions only") {
  CHECK(cut("gpt-2", "I've I'VE  12345 !!\n x") ==
        Pieces{"I", "'ve", " I", "'", "VE", " ", " 12345", " !!", "\n", " x"});
}

TEST_CASE("default, deepseek-llm and deepseek-coder cut in stages") {
  CHECK(cut("default", "Hi, 12345!") == Pieces{"Hi", ",", " ", "123", "45", "!"});
  CHECK(cut("deepseek-llm", "ab 12\ncd  中文x") ==
        Pieces{"ab", " ", "12", "\n", "cd", "  ", "中文", "x"});
  CHECK(cut("deepseek-coder", "a_b 12\r\n") == Pieces{"a", "_", "b", " ", "1", "2", "\r", "\n"});
}

TEST_CASE("ASCII text is cut as the rules, written as a program, cut it") {
  const Pretokenizer llama3("llama-bpe", "f"), qwen2("qwen2", "f"), gpt2("gpt-2", "f");
  std::mt19937_64 rng(11);
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_ascii(rng);
    CAPTURE(text);
    CHECK(cut(llama3, text) == cut_by(text, [](auto t) { return tiktoken_piece(t, 3); }));
    CHECK(cut(qwen2, text) == cut_by(text, [](auto t) { return tiktoken_piece(t, 1); }));
    CHECK(cut(gpt2, text) == cut_by(text, gpt2_piece));
  }
}

TEST_CASE("bytes that are not UTF-8 are pieces of their own") {
  for (const std::string& name : Pretokenizer::names()) {
    const Pretokenizer pre(name, "f");
    // a lone continuation byte, an overlong form, a surrogate, a cut-off character
    CHECK(cut(pre, "ab\x80") == Pieces{"ab", "\x80"});
    CHECK(cut(pre, "\xC0\xAF") == Pieces{"\xC0", "\xAF"});
    CHECK(cut(pre, "\xE0\x9F\xBF") == Pieces{"\xE0", "\x9F", "\xBF"});
    CHECK(cut(pre, "\xF0\x8F\xBF\xBF") == Pieces{"\xF0", "\x8F", "\xBF", "\xBF"});
    CHECK(cut(pre, "\xED\xA0\x80") == Pieces{"\xED", "\xA0", "\x80"});
    CHECK(cut(pre, "\xF4\x90\x80\x80") == Pieces{"\xF4", "\x90", "\x80", "\x80"});
    CHECK(cut(pre, "x\xE4\xBD") == Pieces{"x", "\xE4", "\xBD"});
  }
}

TEST_CASE("long runs cost time in proportion to their length") {
  const size_t n = size_t{1} << 18;
  std::string mixed;  // text and bytes that are none, in turn
  for (size_t i = 0; i < n / 2; ++i) mixed += "a\x80";
  const std::string texts[] = {std::string(n, 'a'),       std::string(n, ' ') + "中",
                               std::string(n, ' ') + "x", std::string(n, '\n') + "x",
                               std::string(n, '1'),       std::string(n, '!'),
                               std::string(n, '1') + "x", std::string(n, 'A'),
                               std::string(n, '\x80'),    mixed};
  std::vector<std::string> names = {"default", "deepseek-llm"};
  for (const auto& golden : test::kPretokenizerGolden) {  // the first of those that cut alike
    const std::string_view alike = golden.names;
    names.emplace_back(alike.substr(0, alike.find(' ')));
  }
  for (const std::string& name : names) {
    CAPTURE(name);
    const Pretokenizer pre(name, "f");
    // A square would be 7 * 10^10 steps.
    for (const std::string& text : texts) CHECK(seconds_to_split(pre, text) < 20);
  }
}

KVASIR_DATA_TEST_CASE(
    "llama-bpe: pieces that are one token each map to ids one to one in its test vectors") {
  KVASIR_REQUIRE_DATA(data);
  const auto base = data / "tokenizers/llama.cpp-vocab/ggml-vocab-llama-bpe.gguf";
  std::ifstream in(base.string() + ".inp", std::ios::binary), out(base.string() + ".out");
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  const Pretokenizer pre("llama-bpe", "f");
  std::map<std::string, int> id_of;
  std::map<int, std::string> piece_of;
  size_t at = 0, n_cases = 0, n_whole = 0;
  for (std::string line; std::getline(out, line); ++n_cases) {
    constexpr std::string_view kMark = "\n__ggml_vocab_test__\n";
    const size_t end = all.find(kMark, at);
    REQUIRE(end != std::string::npos);
    const Pieces pieces = cut(pre, std::string_view(all).substr(at, end - at));
    at = end + kMark.size();
    std::istringstream numbers(line);
    const std::vector<int> ids{std::istream_iterator<int>(numbers), {}};
    CHECK(ids.size() >= pieces.size());
    if (ids.size() != pieces.size()) continue;
    ++n_whole;
    for (size_t i = 0; i < ids.size(); ++i) {
      CHECK(id_of.emplace(pieces[i], ids[i]).first->second == ids[i]);
      CHECK(piece_of.emplace(ids[i], pieces[i]).first->second == pieces[i]);
    }
  }
  CHECK(n_cases == 46);
  CHECK(n_whole >= 30);
}

TEST_SUITE_END();
