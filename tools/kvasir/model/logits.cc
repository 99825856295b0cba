// kvasir model logits: the logits of every position, for comparison with other engines.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/model/npy.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

struct LogitsOptions {
  std::optional<std::string> tokens, tokens_file, prompt, file;
  std::string output;
  uint32_t top_k = 10;
  bool no_bos = false;
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

// The k largest, largest first; of equal ones the lower id.
Json top(std::span<const float> logits, uint32_t k) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto middle = order.begin() + static_cast<ptrdiff_t>(std::min<size_t>(k, order.size()));
  std::partial_sort(order.begin(), middle, order.end(), [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  auto list = Json::array();
  for (auto at = order.begin(); at != middle; ++at)
    list.push_back({{"token_id", *at}, {"logit", logits[static_cast<size_t>(*at)]}});
  return list;
}

void logits(const Options& options, const LogitsOptions& o) {
  if (o.output.empty() && !options.json)
    throw input_error("give -o FILE.npy for all logits, --json for the largest, or both");
  Session session(options);
  const std::vector<TokenId> ids = tokens_of(session, o);
  const auto n = static_cast<uint32_t>(ids.size());
  if (options.ctx_size && n > options.ctx_size)
    throw input_error(std::to_string(n) + " tokens, but -c gives " +
                      std::to_string(options.ctx_size) + ": raise -c");
  const uint64_t vocab = session.shape().vocab_size;
  Engine& engine = session.load(n);
  std::optional<NpyWriter> file;
  if (!o.output.empty()) file.emplace(o.output, n, vocab);
  auto largest = Json::array();
  ProgressBar bar("logits", !options.json);
  engine.prefill(engine.open(), ids, {},
                 {.progress =
                      [&](uint32_t done, uint32_t total) {
                        bar.update(done, total);
                        return true;
                      },
                  .all_logits =
                      [&](uint32_t, uint32_t rows, const float* values) {
                        if (file) file->write({values, rows * vocab});
                        if (!options.json) return;
                        for (uint32_t row = 0; row < rows; ++row)
                          largest.push_back(top({values + row * vocab, vocab}, o.top_k));
                      }});
  if (file) file->finish();
  if (options.json) {
    Json report{{"strategy", session.strategy().name},
                {"compute", session.compute() == Compute::kBF16 ? "bf16" : "f32"},
                {"n_tokens", n},
                {"vocab_size", vocab},
                {"tokens", ids}};
    if (file) report["file"] = o.output;
    report["top_k"] = std::move(largest);
    return print_json(report);
  }
  std::printf("%s: float32 [%u, %llu]\n", o.output.c_str(), n,
              static_cast<unsigned long long>(vocab));
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
  c->add_option("--top-k", o->top_k, "Logits per position in the JSON");
  c->callback([=] { logits(*options, *o); });
}

}  // namespace kvasir::tool
