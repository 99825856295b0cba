// libFuzzer over prompts: any bytes give tokens, and these give the bytes back, under every
// pre-tokenizer and under SentencePiece's merges; the same bytes as the text of a chat template.
// The first byte of the input is the vocabulary, the second whether control tokens are parsed.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "core/model/synthetic/random_tokenizer.h"
#include "core/model/tokenizer/chat_template.h"
#include "core/model/tokenizer/pretokenizer.h"
#include "core/model/tokenizer/tokenizer.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/temp_dir.h"

using namespace kvasir;

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

void add_sentencepiece(GgufWriter& writer) {
  std::vector<std::string> texts{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", static_cast<unsigned>(byte));
    texts.emplace_back(text);
    types.push_back(6);
  }
  for (const char* piece :
       {"a", "b", "ab", "abab", "1", "\xC3\xA9", "\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81",
        "\xE2\x96\x81"
        "a",
        "\xE2\x96\x81"
        "ab",
        "b\xE2\x96\x81", "\n", "\n\n"}) {
    texts.emplace_back(piece);
    types.push_back(1);
  }
  std::vector<float> scores(texts.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
  writer.set("tokenizer.ggml.model", std::string("llama"));
  writer.set("tokenizer.ggml.tokens", texts);
  writer.set("tokenizer.ggml.token_type", types);
  writer.set("tokenizer.ggml.scores", scores);
}

struct Vocabulary {
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Pretokenizer> pieces;  // null: SentencePiece, which has none
};

Vocabulary vocabulary(const std::string& pre) {
  const test::TempDir dir;
  GgufWriter writer;
  if (pre.empty())
    add_sentencepiece(writer);
  else
    set_synthetic_tokenizer(writer, pre, false, 0);
  writer.write(dir.path("vocabulary.gguf"), {});
  Vocabulary out;
  out.file = std::make_unique<GgufFile>(GgufFile::open(dir.path("vocabulary.gguf")));
  out.tokenizer = Tokenizer::from_gguf(*out.file);
  if (!pre.empty()) out.pieces = std::make_unique<Pretokenizer>(pre, "fuzz");
  return out;
}

const std::vector<Vocabulary>& vocabularies() {
  static const std::vector<Vocabulary> all = [] {
    std::vector<Vocabulary> out;
    for (const std::string& pre : Pretokenizer::names()) out.push_back(vocabulary(pre));
    out.push_back(vocabulary(""));
    return out;
  }();
  return all;
}

void check_pieces(const Pretokenizer& pretokenizer, std::string_view text) {
  size_t last = 0;
  for (const size_t end : pretokenizer.split(text)) {
    if (end <= last) std::abort();
    last = end;
  }
  if (last != text.size()) std::abort();
}

// A space mark in the text is a space afterwards: the vocabulary does not tell them apart.
std::string unmarked(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool is_mark = text.substr(at, kSpaceMark.size()) == kSpaceMark;
    out.push_back(is_mark ? ' ' : text[at]);
    at += is_mark ? kSpaceMark.size() : 1;
  }
  return out;
}

void check_round_trip(const Vocabulary& vocabulary, const std::string& text, bool parse_special) {
  const auto ids =
      vocabulary.tokenizer->encode(text, {.add_bos = false, .parse_special = parse_special});
  const std::string back = vocabulary.tokenizer->decode(ids, true);
  // SentencePiece puts a space behind each control token, and decode() cannot know it as such.
  if (parse_special && !vocabulary.pieces) return;
  if (back != (vocabulary.pieces ? text : unmarked(text))) std::abort();
}

void walk_chat_templates(const std::string& text) {
  (void)recognise_chat_template(text);
  (void)default_system_message(text);
  const ChatMessage messages[] = {{"system", text}, {"user", text}, {"assistant", text}};
  for (const std::string& name : chat_template_names())
    (void)apply_chat_template(*chat_template_by_name(name), messages, true);
}

}  // namespace

std::vector<fuzz::Seed> fuzz::seeds() {
  const std::string texts[] = {
      "It's 1234567 degrees, isn't it?\n\n  def f(x):\n\treturn x  \r\n",
      "<|im_start|>user\nd\xC3\xA9j\xC3\xA0 vu \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 "
      "\xE2\x80\x83<|im_end|>",
      "\xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7 \xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D "
      "\xED\x95\x9C\xEA\xB5\xAD 12.5e-3 HTTPResponse \xFF\xC0\xAF\xE2\x96",
  };
  std::vector<Seed> out;
  for (size_t v = 0; v < vocabularies().size(); ++v)
    for (size_t i = 0; i < std::size(texts); ++i) {
      std::string input{static_cast<char>(v), static_cast<char>(i & 1)};
      input.append(texts[i]);
      out.push_back({std::to_string(v).append("-").append(std::to_string(i)), input});
    }
  out.push_back({"template", std::string("\0\0", 2) +
                                 "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + "
                                 "m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"});
  return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Vocabulary& vocabulary = vocabularies()[data[0] % vocabularies().size()];
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (vocabulary.pieces) check_pieces(*vocabulary.pieces, text);
  check_round_trip(vocabulary, text, data[1] & 1);
  walk_chat_templates(text);
  return 0;
}
