// See perplexity.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/compare/perplexity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/divergence.h"

namespace kvasir::tool {
namespace {

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
                          sums.add(negative_log_likelihood({logits + uint64_t{i} * vocab, vocab},
                                                           chunk[pos + 1]));
                        }
                      }});
  engine.close(seq);
  stop_if_interrupted();
}

// Chunks of one size side by side, under the strategy and, where there is one (else 0), its mask.
void add_decoded(Engine& engine, std::span<const Chunk> chunks, StrategyId mask, Sums& sums,
                 Perplexity::Masked& masked) {
  const uint32_t vocab = engine.vocab_size();
  const uint32_t begin = first_predicting(chunks[0]);
  std::vector<StrategyId> strategies{0};
  if (mask) strategies.push_back(mask);
  std::vector<Engine::DecodeItem> items;  // those of the mask behind the others
  for (const StrategyId strategy : strategies)
    for (const Chunk& chunk : chunks) {
      items.push_back({engine.open(strategy), 0});
      engine.prefill(
          items.back().seq, std::span(chunk).first(begin), {},
          {.progress = [](uint32_t, uint32_t) { return !is_interrupted(); }, .all_logits = {}});
      stop_if_interrupted();
    }
  std::vector<float> logits(items.size() * vocab);
  const auto of_item = [&](size_t i) { return std::span(logits).subspan(i * vocab, vocab); };
  for (uint32_t pos = begin; pos + 1 < chunks[0].size(); ++pos) {
    for (size_t i = 0; i < items.size(); ++i) items[i].token = chunks[i % chunks.size()][pos];
    engine.decode(items, logits);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const TokenId token = chunks[i][pos + 1];
      const double nll = negative_log_likelihood(of_item(i), token);
      sums.add(nll);
      if (!mask) continue;
      const auto of_mask = of_item(chunks.size() + i);
      masked.nll.add(nll, negative_log_likelihood(of_mask, token));
      if (most_likely(of_item(i)) == token) masked.tokens.add(true, most_likely(of_mask) == token);
    }
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

// How many chunks of the context fit side by side, at least one.
uint32_t chunks_that_fit(Session& session, Engine& engine, StrategyId mask, uint32_t context) {
  const MemoryBytes of_mask = mask ? engine.sequence_bytes(mask, context) : MemoryBytes();
  const MemoryBytes bytes = engine.sequence_bytes(0, context) + of_mask;
  const MemoryBytes& there = session.sequence_memory();
  const uint64_t n = std::min(there.main / std::max<uint64_t>(bytes.main, 1),
                              there.device / std::max<uint64_t>(bytes.device, 1));
  return static_cast<uint32_t>(std::clamp<uint64_t>(n, 1, kMostSequences));
}

}  // namespace

Perplexity perplexity(Session& session, const std::vector<TokenId>& tokens,
                      const PerplexityOptions& options) {
  const uint32_t context = options.context;
  const std::vector<Chunk> chunks = chunks_of(tokens, context, session.tokenizer());
  const auto most = static_cast<uint32_t>(std::min<size_t>(kMostSequences, chunks.size()));
  Engine& engine = session.load(context, 2 * most);
  Perplexity out;
  out.strategy = session.strategy().name;
  out.context = context;
  out.n_chunks = chunks.size();
  out.most_attended = options.most_attended;
  const bool dense = is_dense(engine.pipeline());
  out.is_decoded = options.decode || !dense;
  StrategyId mask = 0;
  if (options.with_mask && can_be_masked(engine.pipeline()))
    mask = engine.add_strategy(session.pipeline(masked(session.strategy())));
  const size_t together =
      out.is_decoded ? std::min(most, chunks_that_fit(session, engine, mask, context)) : 1;
  Sums sums;
  Perplexity::Masked against_mask;
  ProgressBar bar("perplexity");
  for (size_t i = 0; i < chunks.size(); i += together) {
    const auto some = std::span(chunks).subspan(i, std::min(together, chunks.size() - i));
    if (out.is_decoded)
      add_decoded(engine, some, mask, sums, against_mask);
    else
      add_prefilled(engine, some[0], sums);
    bar.update(i + some.size(), out.n_chunks);
  }
  if (out.is_decoded) {
    const RunReport run = run_report(engine, {});
    out.attended_percent = run.attended_percent();
    out.leaves_out = dense || run.has_engaged(options.most_attended);
  }
  const auto n = static_cast<double>(sums.count);
  out.predicted_tokens = sums.count;
  out.mean_nll = sums.nll / n;
  const double variance = std::max(0.0, sums.squares / n - out.mean_nll * out.mean_nll);
  const double error =
      sums.count > 1 ? std::sqrt(variance / static_cast<double>(sums.count - 1)) : 0.0;
  out.perplexity = std::exp(out.mean_nll);
  out.standard_error = out.perplexity * error;
  if (mask) {
    against_mask.perplexity = std::exp(against_mask.nll.mean_of_mask());
    out.masked = against_mask;
  }
  return out;
}

Json to_json(const Perplexity& r) {
  Json masked;
  if (r.masked)
    masked = {{"perplexity", r.masked->perplexity},
              {"mean_nll_saved", r.masked->nll.gain()},
              {"mean_nll_saved_error", r.masked->nll.error()}};
  return {{"perplexity", r.perplexity},
          {"standard_error", r.standard_error},
          {"mean_nll", r.mean_nll},
          {"predicted_tokens", r.predicted_tokens},
          {"n_chunks", r.n_chunks},
          {"context", r.context},
          {"strategy", r.strategy},
          {"through", r.is_decoded ? "decode" : "prefill"},
          {"attended_percent", r.attended_percent},
          {"masked", masked},
          {"engaged", r.has_engaged()}};
}

std::string to_text(const Perplexity& r) {
  std::string out =
      format("perplexity %.4f +/- %.4f over %llu tokens in %llu chunks of %u\n", r.perplexity,
             r.standard_error, static_cast<unsigned long long>(r.predicted_tokens),
             static_cast<unsigned long long>(r.n_chunks), r.context);
  if (!r.is_decoded) return out;
  out += format("%s: the second half of each chunk was decoded, %.1f %% of its tokens attended\n",
                r.strategy.c_str(), r.attended_percent);
  if (!r.leaves_out) return out + not_engaged_text({r.strategy}, r.most_attended);
  if (!r.masked) return out;
  out += format("with nothing chosen, perplexity %.4f\n", r.masked->perplexity);
  return r.has_engaged()
             ? out
             : out + kept_by_mask_text({r.strategy}, "the tokens that it predicts") +
                   ", and perplexity changes by less than 1 %, or than chance would change it.\n";
}

}  // namespace kvasir::tool
