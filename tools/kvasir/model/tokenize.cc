// kvasir tokenize: text to token ids and back.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <optional>

#include "core/error.h"
#include "core/platform/standard_output.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

struct TokenizeOptions {
  std::string model, prompt, file, decode;
  bool has_prompt = false, has_file = false, has_decode = false;
  bool no_bos = false, special = false, pieces = false, json = false;
};

void check_ids(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids)
    if (static_cast<uint32_t>(id) >= tokenizer.vocab_size())
      throw input_error("--decode: token " + std::to_string(id) + " is outside the vocabulary of " +
                        std::to_string(tokenizer.vocab_size()) + " tokens");
}

struct TokenIds {
  std::vector<TokenId> tokens;
  std::optional<std::vector<std::string>> pieces;  // what each stands for, where asked for
};

Json to_json(const TokenIds& ids) {
  Json out{{"n_tokens", ids.tokens.size()}, {"tokens", ids.tokens}};
  if (ids.pieces && !ids.pieces->empty()) out["pieces"] = *ids.pieces;
  return out;
}

std::string to_text(const TokenIds& ids) {
  if (!ids.pieces) {
    std::vector<std::string> numbers;
    for (const TokenId id : ids.tokens) numbers.push_back(std::to_string(id));
    return join(numbers, ",") + "\n";
  }
  Table table({"token", "piece"}, {0});
  for (size_t i = 0; i < ids.tokens.size(); ++i)  // quoted, so that blanks show
    table.add({std::to_string(ids.tokens[i]),
               Json((*ids.pieces)[i]).dump(-1, ' ', false, Json::error_handler_t::replace)});
  return table.text();
}

struct DecodedText {
  size_t n_tokens = 0;
  std::string text;
};

Json to_json(const DecodedText& decoded) {
  return {{"n_tokens", decoded.n_tokens}, {"text", decoded.text}};
}

// A file gets these bytes and no other.
std::string to_text(const DecodedText& decoded) {
  return isatty(fileno(standard_output())) ? decoded.text + "\n" : decoded.text;
}

DecodedText decode(const Tokenizer& tokenizer, const TokenizeOptions& o) {
  const std::vector<TokenId> ids = parse_token_ids(o.decode, "--decode");
  check_ids(tokenizer, ids);
  return {ids.size(), tokenizer.decode(ids, o.special)};
}

TokenIds encode(const Tokenizer& tokenizer, const TokenizeOptions& o) {
  const std::string text = o.has_file ? read_file(o.file, "-f") : o.prompt;
  TokenIds out;
  out.tokens = tokenizer.encode(text, {.add_bos = !o.no_bos, .parse_special = o.special});
  if (!o.pieces) return out;
  out.pieces.emplace();
  for (const TokenId id : out.tokens) out.pieces->push_back(tokenizer.piece(id, true));
  return out;
}

void tokenize(const TokenizeOptions& o) {
  if (o.has_prompt + o.has_file + o.has_decode != 1)
    throw input_error("give one of -p TEXT, -f FILE and --decode IDS");
  const GgufFile file = GgufFile::open(o.model);
  const auto tokenizer = Tokenizer::from_gguf(file);
  if (o.has_decode)
    print(decode(*tokenizer, o), o.json);
  else
    print(encode(*tokenizer, o), o.json);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto* command = app.add_subcommand("tokenize", "Token ids of a text, or the text of token ids");
  auto o = std::make_shared<TokenizeOptions>();
  command->add_option("-m,--model", o->model, "Model file (GGUF)")
      ->envname("KVASIR_ARG_MODEL")
      ->required();
  auto* prompt = command->add_option("-p,--prompt", o->prompt, "Text");
  auto* file = command->add_option("-f,--file", o->file, "Text from a file");
  auto* decode = command->add_option("--decode", o->decode, "Ids to turn back: 1,2,3");
  command->add_flag("--no-bos", o->no_bos, "Without the beginning-of-text token");
  command->add_flag("--special", o->special,
                    "Special tokens in the text are tokens; with --decode: print them");
  command->add_flag("--pieces", o->pieces, "Show what each id stands for");
  add_json(*command, o->json);
  command->callback([=] {
    o->has_prompt = prompt->count() > 0;
    o->has_file = file->count() > 0;
    o->has_decode = decode->count() > 0;
    tokenize(*o);
  });
}

}  // namespace kvasir::tool
