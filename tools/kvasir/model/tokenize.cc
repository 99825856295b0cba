// kvasir tokenize: text to token ids and back.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "core/error.h"
#include "tools/kvasir/cli/options.h"
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

void print_ids(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
               const TokenizeOptions& o) {
  if (o.json) {
    nlohmann::ordered_json report{{"n_tokens", ids.size()}, {"tokens", ids}};
    if (o.pieces)
      for (const TokenId id : ids) report["pieces"].push_back(tokenizer.piece(id, true));
    return print_json(report);
  }
  if (o.pieces) {
    Table table({"token", "piece"}, {0});
    for (const TokenId id : ids)
      table.add({std::to_string(id),
                 nlohmann::json(tokenizer.piece(id, true))
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
    std::fputs(table.text().c_str(), stdout);
    return;
  }
  std::string line;
  for (const TokenId id : ids) line += (line.empty() ? "" : ",") + std::to_string(id);
  std::printf("%s\n", line.c_str());
}

void tokenize(const TokenizeOptions& o) {
  if (o.has_prompt + o.has_file + o.has_decode != 1)
    throw input_error("give one of -p TEXT, -f FILE and --decode IDS");
  const GgufFile file = GgufFile::open(o.model);
  const auto tokenizer = Tokenizer::from_gguf(file);
  if (!o.has_decode) {
    const std::string text = o.has_file ? read_file(o.file, "-f") : o.prompt;
    return print_ids(
        *tokenizer, tokenizer->encode(text, {.add_bos = !o.no_bos, .parse_special = o.special}), o);
  }
  const std::vector<TokenId> ids = parse_token_ids(o.decode, "--decode");
  check_ids(*tokenizer, ids);
  const std::string text = tokenizer->decode(ids, o.special);
  if (o.json) return print_json({{"n_tokens", ids.size()}, {"text", text}});
  std::fwrite(text.data(), 1, text.size(), stdout);  // to a file: these bytes and no other
  if (isatty(STDOUT_FILENO)) std::fputc('\n', stdout);
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
  command->add_flag("--json", o->json, "One JSON document on stdout, nothing else there");
  command->callback([=] {
    o->has_prompt = prompt->count() > 0;
    o->has_file = file->count() > 0;
    o->has_decode = decode->count() > 0;
    tokenize(*o);
  });
}

}  // namespace kvasir::tool
