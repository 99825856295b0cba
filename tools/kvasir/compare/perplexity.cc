// See perplexity.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/compare/perplexity.h"

#include <algorithm>
#include <cmath>
#include <span>

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

using Chunk = std::vector<TokenId>;

// Chunks decoded in one step: the weights are read once for all of them.
constexpr uint32_t kMostSequences = 8;

uint32_t first_predicting(const Chunk& chunk) { return static_cast<uint32_t>(chunk.size() / 2); }

void add_prefilled(Engine& engine, const Chunk& chunk, Sums& sums) {
  const uint32_t vocab = engine.vocab_size();
  const SequenceId seq = engine.open();
  engine.prefill(seq, chunk, {},
                 {.progress = [](uint32_t, uint32_t) { return !is_interrupted(); },
                  .all_logits =
                      [&](uint32_t first, uint32_t n, const float* logits) {
                        for (uint32_t i = 0; i < n; ++i) {
                          const uint32_t pos = first + i;
                          if (pos < first_predicting(chunk) || pos + 1 >= chunk.size()) continue;
                          sums.add(negative_log_likelihood(logits + uint64_t{i} * vocab, vocab,
                                                           chunk[pos + 1]));
                        }
                      }});
  engine.close(seq);
  stop_if_interrupted();
}

// Chunks of one size side by side.
void add_decoded(Engine& engine, std::span<const Chunk> chunks, Sums& sums) {
  const uint32_t vocab = engine.vocab_size();
  const uint32_t begin = first_predicting(chunks[0]);
  std::vector<Engine::DecodeItem> items;
  for (const Chunk& chunk : chunks) {
    items.push_back({engine.open(), 0});
    engine.prefill(
        items.back().seq, std::span(chunk).first(begin), {},
        {.progress = [](uint32_t, uint32_t) { return !is_interrupted(); }, .all_logits = {}});
    stop_if_interrupted();
  }
  std::vector<float> logits(items.size() * vocab);
  for (uint32_t pos = begin; pos + 1 < chunks[0].size(); ++pos) {
    for (size_t i = 0; i < items.size(); ++i) items[i].token = chunks[i][pos];
    engine.decode(items, logits);
    for (size_t i = 0; i < items.size(); ++i)
      sums.add(negative_log_likelihood(logits.data() + i * vocab, vocab, chunks[i][pos + 1]));
    stop_if_interrupted();
  }
  for (const Engine::DecodeItem& item : items) engine.close(item.seq);
}

std::vector<Chunk> chunks_of(const std::vector<TokenId>& tokens, uint32_t context,
                             const Tokenizer& tokenizer) {
  std::vector<Chunk> chunks;
  for (size_t begin = 0; begin + context <= tokens.size(); begin += context) {
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(begin);
    chunks.emplace_back(first, first + static_cast<ptrdiff_t>(context));
    if (tokenizer.add_bos()) chunks.back()[0] = tokenizer.bos();
  }
  return chunks;
}

bool is_dense(const Pipeline& pipeline) {
  return std::none_of(
      pipeline.selectors.begin(), pipeline.selectors.end(),
      [](const auto& selector) { return selector->has_select() || selector->has_evict_plan(); });
}

// How many sequences of the context fit side by side, at least one.
uint32_t sequences_that_fit(Session& session, Engine& engine, uint32_t context) {
  const uint64_t bytes = std::max<uint64_t>(engine.sequence_bytes(0, context), 1);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(session.sequence_memory() / bytes, 1, kMostSequences));
}

}  // namespace

Perplexity perplexity(Session& session, const std::vector<TokenId>& tokens,
                      const PerplexityOptions& options) {
  const uint32_t context = options.context;
  const std::vector<Chunk> chunks = chunks_of(tokens, context, session.tokenizer());
  const auto most = static_cast<uint32_t>(std::min<size_t>(kMostSequences, chunks.size()));
  Engine& engine = session.load(context, most);
  Perplexity out;
  out.strategy = session.strategy().name;
  out.context = context;
  out.n_chunks = chunks.size();
  out.most_attended = options.most_attended;
  const bool dense = is_dense(engine.pipeline());
  out.is_decoded = options.decode || !dense;
  const size_t together =
      out.is_decoded ? std::min(most, sequences_that_fit(session, engine, context)) : 1;
  Sums sums;
  ProgressBar bar("perplexity");
  for (size_t i = 0; i < chunks.size(); i += together) {
    const auto some = std::span(chunks).subspan(i, std::min(together, chunks.size() - i));
    if (out.is_decoded)
      add_decoded(engine, some, sums);
    else
      add_prefilled(engine, some[0], sums);
    bar.update(i + some.size(), out.n_chunks);
  }
  if (out.is_decoded) {
    const RunReport run = run_report(engine, {});
    out.attended_percent = run.attended_percent();
    out.has_engaged = dense || run.has_engaged(options.most_attended);
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
  return {{"perplexity", r.perplexity},
          {"standard_error", r.standard_error},
          {"mean_nll", r.mean_nll},
          {"predicted_tokens", r.predicted_tokens},
          {"n_chunks", r.n_chunks},
          {"context", r.context},
          {"strategy", r.strategy},
          {"through", r.is_decoded ? "decode" : "prefill"},
          {"attended_percent", r.attended_percent},
          {"engaged", r.has_engaged}};
}

std::string to_text(const Perplexity& r) {
  std::string out =
      format("perplexity %.4f +/- %.4f over %llu tokens in %llu chunks of %u\n", r.perplexity,
             r.standard_error, static_cast<unsigned long long>(r.predicted_tokens),
             static_cast<unsigned long long>(r.n_chunks), r.context);
  if (!r.is_decoded) return out;
  out += format("%s: the second half of each chunk was decoded, %.1f %% of its tokens attended\n",
                r.strategy.c_str(), r.attended_percent);
  return r.has_engaged ? out : out + not_engaged_text({r.strategy}, r.most_attended);
}

}  // namespace kvasir::tool
