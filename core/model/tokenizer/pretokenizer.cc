// The pre-tokenizer expressions and the splitter that runs them with PCRE2.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/tokenizer/pretokenizer.h"

#include <algorithm>
#include <new>
#include <optional>

#include "core/error.h"
#include "core/model/tokenizer/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace kvasir {
namespace {

using Expressions = std::vector<std::string>;

// Unicode White_Space, for use inside brackets. Not \s: with UCP, PCRE2 also counts U+180E, which
// the engines that trained these vocabularies do not.
const std::string kSpace = "\\t-\\r\\x{85}\\p{Z}";
const std::string kIsSpace = "[" + kSpace + "]";
// A run of spaces but its last one when text follows, which then starts with a space.
const std::string kSpaces = kIsSpace + "+(?![^" + kSpace + "])|" + kIsSpace + "+";

// The shape that tokenizer.json files have in common since GPT-4: contractions of any case, words
// with the one character before them, digits, other characters with the newlines behind them.
const std::string kContraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string kWord = "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+";
const std::string kNewlinesAndSpaces = kIsSpace + "*[\\r\\n]+|" + kSpaces;
std::string others(const std::string& not_these, const std::string& tail) {
  return " ?[^" + kSpace + not_these + "]+" + tail;
}
std::string tiktoken(const std::string& digits) {
  return kContraction + "|" + kWord + "|" + digits + "|" + others("\\p{L}\\p{N}", "[\\r\\n]*") +
         "|" + kNewlinesAndSpaces;
}
Expressions llama3() { return {tiktoken("\\p{N}{1,3}")}; }
Expressions qwen2() { return {tiktoken("\\p{N}")}; }
Expressions minicpm5() { return {"\\p{N}{1,3}", tiktoken("\\p{N}+")}; }
Expressions laguna() { return {"[^\\n]+|\\n+", qwen2()[0]}; }
// A suffix behind an apostrophe stays with it: Turkish has no English contractions.
Expressions ufakzeka() { return {qwen2()[0].substr(kContraction.size() + 1)}; }

// Marks count as letters.
Expressions qwen35() {
  return {kContraction + "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|" +
          others("\\p{L}\\p{M}\\p{N}", "[\\r\\n]*") + "|" + kNewlinesAndSpaces};
}
Expressions seed_coder() {
  return {kContraction + "|" + kWord + "|\\p{N}|" + others("\\p{L}\\p{N}", "") + "|" +
          kNewlinesAndSpaces};
}
// Words may hold single spaces. Published without possessive repeats: they change no match, and
// the ways back into a long text would fill the stack.
Expressions exaone_moe() {
  return {kContraction +
          "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}|" +
          others("\\p{L}\\p{N}", "[\\r\\n/]?") + "|" + kNewlinesAndSpaces};
}
// Runs of spaces in powers of two.
Expressions jais2() {
  std::string expression = llama3()[0];
  expression.resize(expression.size() - kSpaces.size());
  for (const char* n : {"512", "256", "128", "64", "32", "16", "8", "4", "1,2"}) {
    expression += kIsSpace + "{" + n + "}(?![^" + kSpace + "])|";
  }
  return {expression + kIsSpace};
}

// A word of GPT-4o is capitals and then small letters; letters without case and marks are both.
const std::string kUpper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
const std::string kLower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
std::string cased_words(const std::string& upper, const std::string& lower,
                        const std::string& tail) {
  const std::string before = "[^\\r\\n\\p{L}\\p{N}]?";
  return before + upper + "*" + lower + "+" + tail + "|" + before + upper + "+" + lower + "*" +
         tail;
}
std::string gpt4o(const std::string& tail, const std::string& digits) {
  return cased_words(kUpper, kLower, tail) + "|" + digits + "|" +
         others("\\p{L}\\p{N}", "[\\r\\n/]*") + "|" + kNewlinesAndSpaces;
}
Expressions gpt4o() { return {gpt4o(kContraction + "?", "\\p{N}{1,3}")}; }
Expressions tekken() { return {gpt4o("", "\\p{N}")}; }
const std::string kHanAndKana = "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+";
Expressions youtu() {
  return {
      "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}"
      "\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|"
      "[\\x{3105}-\\x{312F}]+|" +
          kHanAndKana,
      gpt4o(kContraction + "?", "\\p{N}")};
}
// Han characters are words of their own. sc: is the script alone; PCRE2's \p{Han} is its
// extensions, too.
Expressions kimi_k2() {
  const auto no_han = [](const std::string& c) { return "(?:(?!\\p{sc:Han})" + c + ")"; };
  return {"\\p{sc:Han}+|" + cased_words(no_han(kUpper), no_han(kLower), kContraction + "?") +
          "|\\p{N}{1,3}|" + others("\\p{L}\\p{N}", "[\\r\\n]*") + "|" + kNewlinesAndSpaces};
}

// Digits by three, counted from the right. Both are published with a look-ahead from every digit
// to the end of its run, which costs a long run its square: (?=(\d{3})+(?!\d)) cuts where it
// matches, and \d{1,3}(?=(?:\d{3})*\b) is a piece.
Expressions superbpe() {
  // Up to where the next three begin: runs of one or two digits, the first ones of a longer run.
  const std::string rest = "\\D*+(?:\\d{1,2}(?!\\d)\\D*+)*+(?:\\d{1,2}(?=(?:\\d{3})++(?!\\d)))?+";
  const std::string three = "\\d{3}(?:(?!\\d)" + rest + ")?+";
  return {"\\p{N}+", "\\G(?!^)" + three + "|^(?=(?:\\d{3})++(?!\\d))" + three + "|^" + rest};
}
Expressions tiny_aya() {
  // The class is what \b takes for a part of a word.
  return {
      "(?<!\\d)\\d++(?![\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
      "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}])",
      "^\\d{1,3}(?=(?:\\d{3})*+\\z)|\\G(?!^)\\d{3}", gpt4o()[0]};
}

// encoder.py of openai/gpt-2.
Expressions gpt2() {
  return {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" + kSpace + "\\p{L}\\p{N}]+|" +
          kSpaces};
}
Expressions digits_gpt2() { return {"\\p{N}", gpt2()[0]}; }

// What llama.cpp applies to a file that names no pre-tokenizer.
Expressions fallback() {
  return {"[\\p{P}\\$\\+<=>\\^~\\|]+", gpt2()[0], "\\p{N}+", "[0-9][0-9][0-9]"};
}
// The digits are ASCII: the published stages for them come after the text became bytes.
Expressions falcon() {
  return {"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2()[0], "[0-9]+", "[0-9][0-9][0-9]"};
}

// Between spaces and the stops of several scripts.
Expressions bloom() {
  return {" ?[^" + kSpace +
          "(|.,!?)\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C}]+"};
}
Expressions viking() { return {bloom()[0], "\\p{N}"}; }

Expressions chameleon() {
  return {"<sentinel:[0-9]+>",      "IMGIMG[A-I]{1,4}Z",
          "[\\t\\n]|    |  ",       "\\p{N}",
          "[\\p{P}!-/:-@\\[-`{-~]", gpt2()[0]};
}

// Han, Hangul, and the scripts from U+0800 on that DeepSeek's files put in one class with them.
const std::string kDeepseekCjk = "[\\x{800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}]+";
// The cased letters as deepseek-llm's tokenizer.json lists them: those of Unicode 11 less some
// blocks, so no property class stands for them.
const char* const kDeepseekCasedLetters =
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}-\\x{377}\\x{37B}-\\x{37D}"
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}"
    "\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}"
    "\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}"
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}"
    "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}-\\x{2184}"
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}-\\x{2CF3}"
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"
    "\\x{1E900}-\\x{1E943}";

Expressions deepseek_llm() {
  return {"[\\r\\n]", kIsSpace + "?[" + kDeepseekCasedLetters + "]+",
          kIsSpace + "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}" +
              "\\x{3000}-\\x{3002}]+",
          // Published without the look-behind: it changes no match, but where PCRE2 has no JIT, a
          // long run of spaces would cost its square.
          "(?<!" + kIsSpace + ")" + kIsSpace + "++$", kDeepseekCjk, "\\p{N}+"};
}

Expressions deepseek_coder() {
  return {"[\\r\\n]", kIsSpace + "?\\p{L}+", kIsSpace + "?\\p{P}+", kDeepseekCjk, "\\p{N}"};
}

const std::string kDeepseekWords =
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+";
Expressions deepseek_v3() {
  return {"\\p{N}{1,3}", kHanAndKana, kDeepseekWords + "[\\r\\n]*|" + kNewlinesAndSpaces};
}
Expressions spark() {
  return {"\\p{N}{1,3}", kHanAndKana, kDeepseekWords + "|[\\r\\n]|" + kSpaces, "\\p{N}"};
}

struct Entry {
  const char* name;
  Expressions (*expressions)();  // each cuts the pieces the one before it left
  bool ignore_merges = false;
  bool adds_bos = false;
};

// Aliases are the names llama.cpp's converter gives to tokenizers that cut text alike.
constexpr Entry kEntries[] = {
    {"a.x-4.0", gpt2},
    {"bailingmoe", qwen2},
    {"bailingmoe2", qwen2},
    {"bloom", bloom},
    {"chameleon", chameleon, false, true},
    {"chatglm-bpe", llama3},
    {"codeshell", digits_gpt2},
    {"cohere2moe", tiny_aya},
    {"command-r", digits_gpt2},
    {"dbrx", llama3},
    {"deepseek-coder", deepseek_coder},
    {"deepseek-llm", deepseek_llm},
    {"deepseek-r1-qwen", qwen2},
    {"deepseek-v3", deepseek_v3},
    {"default", fallback},
    {"exaone", digits_gpt2},
    {"exaone-moe", exaone_moe},
    {"exaone4", gpt2},
    {"f2llmv2", qwen2},
    {"falcon", falcon},
    {"falcon-h1", llama3, true, true},
    {"falcon3", llama3, true, true},
    {"gigachat", gpt2},
    {"glm4", llama3},
    {"gpt-2", gpt2},
    {"gpt-4o", gpt4o},
    {"gpt3-finnish", bloom},
    {"granite-docling", gpt2},
    {"grok-2", qwen2},
    {"hunyuan", qwen2},
    {"hunyuan-dense", deepseek_v3},
    {"hy_v4", deepseek_v3},
    {"jais", gpt2},
    {"jais-2", jais2},
    {"joyai-llm", deepseek_v3},
    {"kanana2", gpt4o},
    {"kimi-k2", kimi_k2},
    {"kormo", qwen2},
    {"laguna", laguna},
    {"lfm2", llama3, true, true},
    {"llada-moe", qwen2},
    {"llama-bpe", llama3, true, true},
    {"llama-v3", llama3, true, true},
    {"llama3", llama3, true, true},
    {"llama4", gpt4o},
    {"megrez", qwen2},
    {"mellum", gpt2},
    {"mellum2", digits_gpt2},
    {"midm-2.0", llama3, true, true},
    {"minerva-7b", digits_gpt2},
    {"minicpm5", minicpm5, true},
    {"minimax-m2", gpt4o},
    {"mpt", gpt2},
    {"olmo", gpt2},
    {"phi-2", gpt2},
    {"pixtral", llama3, true, true},
    {"poro-chat", bloom},
    {"qwen2", qwen2},
    {"qwen35", qwen35},
    {"refact", digits_gpt2},
    {"seed-coder", seed_coder},
    {"smaug-bpe", llama3},
    {"smollm", digits_gpt2},
    {"solar-open", qwen2},
    {"spark2_5", spark},
    {"stablelm2", qwen2},
    {"starcoder", digits_gpt2},
    {"superbpe", superbpe},
    {"talkie", gpt4o},
    {"tekken", tekken, true, true},
    {"tiny_aya", tiny_aya},
    {"trillion", gpt2},
    {"ufakzeka", ufakzeka},
    {"viking", viking},
    {"youtu", youtu, true},
};

[[noreturn]] void unsupported(std::string_view name, const std::string& where) {
  std::string list;
  for (const Entry& entry : kEntries) list += std::string(list.empty() ? "" : ", ") + entry.name;
  throw input_error(where + ": pre-tokenizer '" + std::string(name) +
                    "' (tokenizer.ggml.pre) is not supported; supported: " + list);
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct Range {
  size_t begin, end;
};

}  // namespace

// Memory for the result of a match, made once per split(): small pieces are many.
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct Pretokenizer::Match {
  Match() : data(pcre2_match_data_create(1, nullptr)) {
    if (data == nullptr) throw std::bad_alloc();
  }
  std::unique_ptr<pcre2_match_data, FreeMatch> data;
};

// One compiled expression. Matching is const and safe from several threads: the match data is the
// caller's.
struct Pretokenizer::Stage {
  explicit Stage(const std::string& expression) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    if (code_ == nullptr) {
      throw Error(ErrorKind::kInternal, "pre-tokenizer expression does not compile at offset " +
                                            std::to_string(at) + ": " + message_of(error));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // where it fails, matching interprets
  }
  ~Stage() { pcre2_code_free(code_); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // First match in `text` (well-formed UTF-8) at or after `from`.
  std::optional<Range> find(std::string_view text, size_t from, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, nullptr);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                       nullptr);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (rc < 0) throw Error(ErrorKind::kInternal, "pre-tokenizer failed: " + message_of(rc));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    return Range{offsets[0], offsets[1]};
  }

 private:
  pcre2_code* code_ = nullptr;
};

Pretokenizer::Pretokenizer(std::string_view name, const std::string& where) {
  const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                   [&](const Entry& e) { return name == e.name; });
  if (entry == std::end(kEntries)) unsupported(name, where);
  for (const std::string& expression : entry->expressions()) {
    stages_.push_back(std::make_unique<Stage>(expression));
  }
  ignore_merges_ = entry->ignore_merges;
  adds_bos_ = entry->adds_bos;
}

Pretokenizer::~Pretokenizer() = default;

std::vector<std::string> Pretokenizer::names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::vector<size_t> Pretokenizer::split(std::string_view text) const {
  std::vector<size_t> ends;
  const Match match;
  for (size_t at = 0; at < text.size();) {
    const size_t valid = utf8::valid_prefix(text.substr(at));
    if (valid > 0) split_valid(text.substr(at, valid), at, match, ends);
    at += valid;
    if (at < text.size()) ends.push_back(++at);  // the byte that is not UTF-8
  }
  return ends;
}

// Every stage sees each piece of the stage before as a text of its own (look-ahead and $ stop at
// its end); what a stage does not match stays a piece.
void Pretokenizer::split_valid(std::string_view text, size_t base, const Match& memory,
                               std::vector<size_t>& ends) const {
  std::vector<size_t> pieces = {text.size()};
  for (const auto& stage : stages_) {
    std::vector<size_t> finer;
    finer.reserve(pieces.size());
    size_t begin = 0;
    for (const size_t end : pieces) {
      const std::string_view piece = text.substr(begin, end - begin);
      size_t at = 0;
      while (at < piece.size()) {
        const auto match = stage->find(piece, at, memory.data.get());
        if (!match || match->end <= at) break;
        if (match->begin > at) finer.push_back(begin + match->begin);
        finer.push_back(begin + match->end);
        at = match->end;
      }
      if (at < piece.size()) finer.push_back(end);
      begin = end;
    }
    pieces = std::move(finer);
  }
  for (const size_t end : pieces) ends.push_back(base + end);
}

}  // namespace kvasir
