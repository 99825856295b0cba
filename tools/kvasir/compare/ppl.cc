// kvasir ppl: perplexity of a text by llama-perplexity's rule.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/compare/perplexity.h"

namespace kvasir::tool {
namespace {

const char* const kRule =
    "Tokens in chunks of -c; those of the second half of each chunk are predicted. Dense attention "
    "is scored by prefill, as llama-perplexity does. Under a strategy that chooses or evicts the "
    "first half is the prompt and the second is decoded, fed with the text's own tokens: prefill "
    "is dense under most strategies, and would give dense attention's perplexity. Beside it stands "
    "the strategy masked, with nothing chosen: where that predicts as well, it did not engage.";

struct PplFlags {
  std::string file;
  PerplexityOptions options;
  bool no_mask = false;
};

void ppl(const Options& options, const PplFlags& flags) {
  const std::string& path = flags.file;
  Session session(options);
  const std::vector<TokenId> tokens = session.tokenizer().encode(read_file(path, "-f"), {});
  const uint32_t context = options.ctx_size ? options.ctx_size : 512;
  if (context < 4) throw input_error("-c must be at least 4 for perplexity");
  if (tokens.size() < context)
    throw input_error(path + ": has " + std::to_string(tokens.size()) +
                      " tokens, one chunk of -c " + std::to_string(context) + " is needed");
  PerplexityOptions wanted = flags.options;
  wanted.context = context;
  wanted.with_mask = !flags.no_mask;
  print(perplexity(session, tokens, wanted), options.json);
}

}  // namespace

void add_ppl(CLI::App& app) {
  auto* command = app.add_subcommand("ppl", "Perplexity of a text, by llama-perplexity's rule");
  auto options = std::make_shared<Options>();
  auto f = std::make_shared<PplFlags>();
  command->footer(kRule);
  add_model_flags(*command, *options);
  add_strategy_flags(*command, *options);
  command->add_option("-f,--file", f->file, "Text file")->required();
  command->add_flag("--decode", f->options.decode,
                    "Dense attention through decode, too: to compare strategies with");
  add_most_attended(*command, f->options.most_attended);
  add_no_mask(*command, f->no_mask);
  command->callback([=] { ppl(*options, *f); });
}

}  // namespace kvasir::tool
