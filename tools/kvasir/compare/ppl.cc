// kvasir ppl: perplexity of a text by llama-perplexity's rule.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {
namespace {

// -log softmax(logits)[token], in double.
double negative_log_likelihood(const float* logits, uint32_t vocab, TokenId token) {
  double high = logits[0];
  for (uint32_t i = 1; i < vocab; ++i) high = std::max(high, static_cast<double>(logits[i]));
  double sum = 0;
  for (uint32_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - high);
  return high + std::log(sum) - static_cast<double>(logits[token]);
}

// The text's tokens in chunks of `context`; the first token of each is replaced by BOS; the second
// half predicts: positions context/2 … context-2 predict the tokens after them.
void ppl(const Options& options, const std::string& path) {
  Session session(options);
  const Tokenizer& tokenizer = session.tokenizer();
  const std::string text = read_file(path, "-f");
  const std::vector<TokenId> tokens = tokenizer.encode(text, {});
  const uint32_t context = options.ctx_size ? options.ctx_size : 512;
  const size_t n_chunks = tokens.size() / context;
  if (context < 4) throw input_error("-c must be at least 4 for perplexity");
  if (n_chunks == 0)
    throw input_error(path + ": has " + std::to_string(tokens.size()) +
                      " tokens, one chunk of -c " + std::to_string(context) + " is needed");
  Engine& engine = session.load(context);
  const uint32_t vocab = session.shape().vocab_size;
  double sum = 0, sum_squares = 0;
  uint64_t count = 0;
  ProgressBar bar("perplexity", !options.json);
  for (size_t chunk = 0; chunk < n_chunks; ++chunk) {
    std::vector<TokenId> part(tokens.begin() + static_cast<ptrdiff_t>(chunk * context),
                              tokens.begin() + static_cast<ptrdiff_t>((chunk + 1) * context));
    if (tokenizer.add_bos()) part[0] = tokenizer.bos();
    const SequenceId seq = engine.open();
    engine.prefill(
        seq, part, {},
        {.progress = {}, .all_logits = [&](uint32_t first, uint32_t n, const float* logits) {
           for (uint32_t i = 0; i < n; ++i) {
             const uint32_t pos = first + i;
             if (pos < context / 2 || pos + 1 >= context) continue;
             const double nll =
                 negative_log_likelihood(logits + uint64_t{i} * vocab, vocab, part[pos + 1]);
             sum += nll;
             sum_squares += nll * nll;
             ++count;
           }
         }});
    engine.close(seq);
    bar.update(chunk + 1, n_chunks);
  }
  const double mean = sum / static_cast<double>(count);
  const double variance = sum_squares / static_cast<double>(count) - mean * mean;
  const double error = count > 1 ? std::sqrt(variance / static_cast<double>(count - 1)) : 0.0;
  const double perplexity = std::exp(mean);
  if (options.json) {
    const nlohmann::ordered_json report{{"perplexity", perplexity},
                                        {"standard_error", perplexity * error},
                                        {"mean_nll", mean},
                                        {"predicted_tokens", count},
                                        {"n_chunks", n_chunks},
                                        {"context", context},
                                        {"strategy", session.strategy().name}};
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("perplexity %.4f +/- %.4f over %llu tokens in %zu chunks of %u\n", perplexity,
              perplexity * error, static_cast<unsigned long long>(count), n_chunks, context);
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
