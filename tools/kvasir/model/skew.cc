// kvasir model skew: skewing matrices of a model from a sample text, for the selector infinigen, or
// the model with them folded into its weights.
// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/model/tokenizer/tokenizer.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/model_identity.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/session/strategy.h"
#include "tools/skew/skew_fold.h"

namespace kvasir::tool {
namespace {

constexpr uint32_t kBatchTokens = 256;

struct SkewOptions {
  std::string file, column_file, output;
  uint32_t n_tokens = 2048;
  bool fold = false, force = false;
};

struct WrittenSkew {
  std::string file;
  uint64_t file_bytes = 0;
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  size_t n_tokens = 0;  // of the sample
};

Json to_json(const WrittenSkew& w) {
  return {{"file", w.file},         {"file_bytes", w.file_bytes},
          {"n_layers", w.n_layers}, {"n_kv_heads", w.n_kv_heads},
          {"head_dim", w.head_dim}, {"n_tokens", w.n_tokens}};
}

std::string to_text(const WrittenSkew& w) {
  return format("%s: %u layers x %u kv heads of %u x %u, from %zu tokens, %s\n", w.file.c_str(),
                w.n_layers, w.n_kv_heads, w.head_dim, w.head_dim, w.n_tokens,
                bytes_text(w.file_bytes).c_str());
}

WrittenSkew write_skew(const Options& options, const SkewOptions& o) {
  if (options.model.empty()) throw input_error("no model: give -m FILE.gguf");
  check_overwrite(o.output, o.force);
  PluginHost host(options);  // for its threads
  const auto file = GgufFile::open(options.model);
  const auto tokenizer = Tokenizer::from_gguf(file);
  const auto first_tokens = [&](const std::string& path, const char* flag) {
    std::vector<TokenId> ids = tokenizer->encode(read_file(path, flag), {.add_bos = true});
    if (ids.size() > o.n_tokens) ids.resize(o.n_tokens);
    return ids;
  };
  const std::vector<TokenId> ids = first_tokens(o.file, "-f");
  std::vector<TokenId> column_ids;
  if (!o.column_file.empty()) column_ids = first_tokens(o.column_file, "--columns-from");
  Model::Options model_options;
  model_options.compute = wanted_compute(options);
  model_options.max_batch_tokens = kBatchTokens;
  model_options.deterministic = options.deterministic;
  const ModelShape shape = read_shape(file);
  const Model::Memory memory = Model::plan_memory(file, model_options);
  check_memory(memory.weight_bytes + memory.scratch_bytes + vocabulary_bytes(shape) +
                   skew_bytes(shape, ids.size() + column_ids.size()) + kProcessBytes,
               "a sample of " + std::to_string(ids.size()) + " tokens",
               "weights " + bytes_text(memory.weight_bytes), "lower --tokens");
  const auto model = Model::load(file, host.pool(), model_options);
  if (o.fold) check_foldable(model->shape());
  if (model->shape().rope.n_dims > 0)
    std::fprintf(stderr,
                 "kvasir: note: this model rotates its keys (RoPE): on two such models a skew made "
                 "the choice worse, see docs/trained-models.md\n");
  ProgressBar bar("layers");
  const SkewMatrices skew = skew_matrices(
      *model, host.pool(), ids, kBatchTokens,
      [&](uint32_t done, uint32_t total) {
        stop_if_interrupted();
        bar.update(done, total);
      },
      column_ids);
  if (o.fold)
    write_folded_model(file, model->shape(), skew, o.output);
  else
    write_skew_file(skew, model_hash(file), o.output);
  return {o.output,        file_bytes(o.output), skew.n_layers,
          skew.n_kv_heads, skew.head_dim,        ids.size()};
}

}  // namespace

void add_model_skew(CLI::App& model) {
  auto* c = model.add_subcommand("skew", "Write skewing matrices for the selector infinigen");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<SkewOptions>();
  add_model_flags(*c, *options);
  c->add_option("-f,--file", o->file, "Sample text")->required();
  c->add_option("-o,--output", o->output, "File to write")->required();
  c->add_option("--tokens", o->n_tokens, "Tokens of each text that are used");
  auto* columns = c->add_option("--columns-from", o->column_file,
                                "Text that says which columns matter to columns = \"offline\"; "
                                "default: the sample");
  c->add_flag("--fold", o->fold,
              "Write the model with the matrices in its weights; for models without RoPE")
      ->excludes(columns);
  c->add_flag("--force", o->force, "Overwrite the file");
  add_json(*c, options->json);
  c->callback([=] { print(write_skew(*options, *o), options->json); });
}

}  // namespace kvasir::tool
