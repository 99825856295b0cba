// kvasir ppl: perplexity of a text by llama-perplexity's rule.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/compare/perplexity.h"

namespace kvasir::tool {
namespace {

void ppl(const Options& options, const std::string& path) {
  Session session(options);
  const std::vector<TokenId> tokens = session.tokenizer().encode(read_file(path, "-f"), {});
  const uint32_t context = options.ctx_size ? options.ctx_size : 512;
  if (context < 4) throw input_error("-c must be at least 4 for perplexity");
  if (tokens.size() < context)
    throw input_error(path + ": has " + std::to_string(tokens.size()) +
                      " tokens, one chunk of -c " + std::to_string(context) + " is needed");
  print(perplexity(session, tokens, context), options.json);
}

}  // namespace

void add_ppl(CLI::App& app) {
  auto* command = app.add_subcommand("ppl", "Perplexity of a text, by llama-perplexity's rule");
  auto options = std::make_shared<Options>();
  auto file = std::make_shared<std::string>();
  add_model_flags(*command, *options);
  add_strategy_flags(*command, *options);
  command->add_option("-f,--file", *file, "Text file")->required();
  command->callback([=] { ppl(*options, *file); });
}

}  // namespace kvasir::tool
