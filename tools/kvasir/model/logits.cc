// kvasir model logits: the logits of every position, for comparison with other engines.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/model/npy.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

struct LogitsOptions {
  std::optional<std::string> tokens, tokens_file, prompt, file;
  std::string output;
  uint32_t top_k = 10;
  bool no_bos = false, force = false;
};

std::vector<TokenId> tokens_of(const Session& session, const LogitsOptions& o) {
  if (o.tokens.has_value() + o.tokens_file.has_value() + o.prompt.has_value() +
          o.file.has_value() !=
      1)
    throw input_error("give one of --tokens, --tokens-file, -p and -f");
  std::vector<TokenId> ids;
  if (o.tokens) {
    ids = parse_token_ids(*o.tokens, "--tokens");
  } else if (o.tokens_file) {
    ids = parse_token_ids(read_file(*o.tokens_file, "--tokens-file"), *o.tokens_file);
  } else {
    const std::string text = o.file ? read_file(*o.file, "-f") : *o.prompt;
    ids = session.tokenizer().encode(text, {.add_bos = !o.no_bos, .parse_special = false});
  }
  if (ids.empty()) throw input_error("there are no tokens: give at least one");
  for (const TokenId id : ids)
    if (static_cast<uint32_t>(id) >= session.shape().vocab_size)
      throw input_error("token " + std::to_string(id) + " is outside the vocabulary of " +
                        std::to_string(session.shape().vocab_size) + " tokens");
  return ids;
}

struct TopLogit {
  TokenId token_id;
  float logit;
};

struct Logits {
  std::string strategy;
  Compute compute = Compute::kF32;
  std::vector<TokenId> tokens;
  uint64_t vocab_size = 0;
  std::string file;                        // float32 [tokens, vocab_size]; empty: not written
  std::vector<std::vector<TopLogit>> top;  // per token, with --json
};

Json to_json(const Logits& l) {
  Json out{{"strategy", l.strategy},
           {"compute", name(l.compute)},
           {"n_tokens", l.tokens.size()},
           {"vocab_size", l.vocab_size},
           {"tokens", l.tokens}};
  if (!l.file.empty()) out["file"] = l.file;
  out["top_k"] = Json::array();
  for (const std::vector<TopLogit>& token : l.top) {
    Json list = Json::array();
    for (const TopLogit& top : token)
      list.push_back({{"token_id", top.token_id}, {"logit", top.logit}});
    out["top_k"].push_back(list);
  }
  return out;
}

std::string to_text(const Logits& l) {
  return format("%s: float32 [%zu, %llu]\n", l.file.c_str(), l.tokens.size(),
                static_cast<unsigned long long>(l.vocab_size));
}

// The k largest, largest first; of equal ones the lower id.
std::vector<TopLogit> top(std::span<const float> logits, uint32_t k) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto middle = order.begin() + static_cast<ptrdiff_t>(std::min<size_t>(k, order.size()));
  std::partial_sort(order.begin(), middle, order.end(), [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  std::vector<TopLogit> list;
  for (auto at = order.begin(); at != middle; ++at)
    list.push_back({*at, logits[static_cast<size_t>(*at)]});
  return list;
}

// Reads the tokens. Writes all logits to the file, and the largest ones to `out`.
void prefill(Session& session, const Options& options, uint32_t top_k, Logits& out) {
  const auto n = static_cast<uint32_t>(out.tokens.size());
  const uint64_t vocab = out.vocab_size;
  Engine& engine = session.load(n);
  std::optional<NpyWriter> file;
  if (!out.file.empty()) file.emplace(out.file, n, vocab);
  ProgressBar bar("logits");
  engine.prefill(engine.open(), out.tokens, {},
                 {.progress =
                      [&](uint32_t done, uint32_t total) {
                        bar.update(done, total);
                        return !is_interrupted();
                      },
                  .all_logits =
                      [&](uint32_t, uint32_t n_tokens, const float* values) {
                        if (file) file->write({values, n_tokens * vocab});
                        if (!options.json) return;
                        for (uint32_t i = 0; i < n_tokens; ++i)
                          out.top.push_back(top({values + i * vocab, vocab}, top_k));
                      }});
  stop_if_interrupted();
  if (file) file->finish();
}

void logits(const Options& options, const LogitsOptions& o) {
  if (o.output.empty() && !options.json)
    throw input_error("give -o FILE.npy for all logits, --json for the largest, or both");
  check_overwrite(o.output, o.force);
  Session session(options);
  Logits out;
  out.tokens = tokens_of(session, o);
  if (options.ctx_size && out.tokens.size() > options.ctx_size)
    throw input_error(std::to_string(out.tokens.size()) + " tokens, but -c gives " +
                      std::to_string(options.ctx_size) + ": raise -c");
  out.strategy = session.strategy().name;
  out.compute = session.setup().compute;
  out.vocab_size = session.shape().vocab_size;
  out.file = o.output;
  prefill(session, options, o.top_k, out);
  print(out, options.json);
}

}  // namespace

void add_model_logits(CLI::App& model) {
  auto* c = model.add_subcommand("logits", "Logits of every position, as .npy and as JSON");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<LogitsOptions>();
  add_model_flags(*c, *options);
  add_strategy_flags(*c, *options);
  c->add_option("--tokens", o->tokens, "Token ids: 1,2,3");
  c->add_option("--tokens-file", o->tokens_file, "Token ids from a file");
  c->add_option("-p,--prompt", o->prompt, "Text");
  c->add_option("-f,--file", o->file, "Text from a file");
  c->add_flag("--no-bos", o->no_bos, "Without the beginning-of-text token");
  c->add_option("-o,--output", o->output, "File to write: float32 [tokens, vocabulary]");
  c->add_flag("--force", o->force, "Overwrite the file");
  c->add_option("--top-k", o->top_k, "Logits per position in the JSON");
  c->callback([=] { logits(*options, *o); });
}

}  // namespace kvasir::tool
