// See perplexity.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/compare/perplexity.h"

#include <algorithm>
#include <cmath>

#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"

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

struct Sums {
  double nll = 0, squares = 0;
  uint64_t count = 0;

  void add(double value) {
    nll += value;
    squares += value * value;
    ++count;
  }
};

void add_chunk(Engine& engine, const std::vector<TokenId>& chunk, uint32_t vocab, Sums& sums) {
  const auto context = static_cast<uint32_t>(chunk.size());
  const SequenceId seq = engine.open();
  engine.prefill(seq, chunk, {},
                 {.progress = [](uint32_t, uint32_t) { return !is_interrupted(); },
                  .all_logits =
                      [&](uint32_t first, uint32_t n, const float* logits) {
                        for (uint32_t i = 0; i < n; ++i) {
                          const uint32_t pos = first + i;
                          if (pos < context / 2 || pos + 1 >= context) continue;
                          sums.add(negative_log_likelihood(logits + uint64_t{i} * vocab, vocab,
                                                           chunk[pos + 1]));
                        }
                      }});
  engine.close(seq);
  stop_if_interrupted();
}

}  // namespace

Perplexity perplexity(Session& session, const std::vector<TokenId>& tokens, uint32_t context) {
  const Tokenizer& tokenizer = session.tokenizer();
  Perplexity out;
  out.strategy = session.strategy().name;
  out.context = context;
  out.n_chunks = tokens.size() / context;
  Engine& engine = session.load(context);
  Sums sums;
  ProgressBar bar("perplexity");
  for (size_t i = 0; i < out.n_chunks; ++i) {
    std::vector<TokenId> chunk(tokens.begin() + static_cast<ptrdiff_t>(i * context),
                               tokens.begin() + static_cast<ptrdiff_t>((i + 1) * context));
    if (tokenizer.add_bos()) chunk[0] = tokenizer.bos();
    add_chunk(engine, chunk, session.shape().vocab_size, sums);
    bar.update(i + 1, out.n_chunks);
  }
  const auto n = static_cast<double>(sums.count);
  out.predicted_tokens = sums.count;
  out.mean_nll = sums.nll / n;
  const double variance = std::max(0.0, sums.squares / n - out.mean_nll * out.mean_nll);
  const double error =
      sums.count > 1 ? std::sqrt(variance / static_cast<double>(sums.count - 1)) : 0.0;
  out.perplexity = std::exp(out.mean_nll);
  out.standard_error = out.perplexity * error;
  return out;
}

Json to_json(const Perplexity& r) {
  return {{"perplexity", r.perplexity}, {"standard_error", r.standard_error},
          {"mean_nll", r.mean_nll},     {"predicted_tokens", r.predicted_tokens},
          {"n_chunks", r.n_chunks},     {"context", r.context},
          {"strategy", r.strategy}};
}

std::string to_text(const Perplexity& r) {
  return format("perplexity %.4f +/- %.4f over %llu tokens in %llu chunks of %u\n", r.perplexity,
                r.standard_error, static_cast<unsigned long long>(r.predicted_tokens),
                static_cast<unsigned long long>(r.n_chunks), r.context);
}

}  // namespace kvasir::tool
