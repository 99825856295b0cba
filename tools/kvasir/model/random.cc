// kvasir model random: writes a valid GGUF with random weights, from a preset or a shape.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <optional>

#include "core/error.h"
#include "core/model/layers/architecture.h"
#include "core/model/synthetic/random_model.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"

namespace kvasir::tool {
namespace {

struct RandomOptions {
  std::string shape, output, tokenizer_from;
  std::optional<std::string> architecture, name, type, rope_scaling;
  std::optional<uint32_t> n_layers, d_model, d_ff, n_q_heads, n_kv_heads, head_dim, vocab_size,
      context_length, rope_original_context;
  std::optional<float> rope_base, rope_factor, norm_eps, norm_spread;
  std::optional<bool> tied;
  uint64_t seed = 1;
  bool no_rope = false, force = false, json = false;
};

template <class T>
void assign(T& field, const std::optional<T>& given) {
  if (given) field = *given;
}

RandomModelSpec spec_of(const RandomOptions& o) {
  RandomModelSpec s;
  if (!o.shape.empty()) s = preset(o.shape);
  assign(s.name, o.name);
  assign(s.architecture, o.architecture);
  assign(s.n_layers, o.n_layers);
  assign(s.d_model, o.d_model);
  assign(s.d_ff, o.d_ff);
  assign(s.n_q_heads, o.n_q_heads);
  assign(s.n_kv_heads, o.n_kv_heads);
  assign(s.head_dim, o.head_dim);
  assign(s.vocab_size, o.vocab_size);
  assign(s.context_length, o.context_length);
  s.rope = !o.no_rope;
  assign(s.rope_base, o.rope_base);
  assign(s.rope_scaling, o.rope_scaling);
  assign(s.rope_factor, o.rope_factor);
  assign(s.rope_original_context, o.rope_original_context);
  assign(s.norm_eps, o.norm_eps);
  assign(s.norm_spread, o.norm_spread);
  assign(s.tied_embeddings, o.tied);
  s.seed = o.seed;
  if (s.n_kv_heads == 0) s.n_kv_heads = s.n_q_heads;
  if (s.head_dim == 0 && s.n_q_heads != 0) s.head_dim = s.d_model / s.n_q_heads;
  if (o.architecture || o.shape.empty()) {  // the architecture decides these
    const Architecture& family = architecture(s.architecture);
    s.qkv_bias = family.qkv_bias;
    s.qk_norm = family.qk_norm;
  }
  if (o.type) s.type = weight_mix_by_name(*o.type, "--type");
  return s;
}

struct WrittenModel {
  std::string file;
  uint64_t file_bytes = 0, n_parameters = 0;
  RandomModelSpec spec;
};

Json to_json(const WrittenModel& m) {
  return {{"file", m.file},
          {"file_bytes", m.file_bytes},
          {"name", m.spec.name},
          {"architecture", m.spec.architecture},
          {"n_layers", m.spec.n_layers},
          {"n_parameters", m.n_parameters},
          {"type", m.spec.type.name()},
          {"seed", m.spec.seed}};
}

std::string to_text(const WrittenModel& m) {
  return format("%s: %s, %u layers, %.1f million random weights as %s, %s\n", m.file.c_str(),
                m.spec.name.c_str(), m.spec.n_layers, static_cast<double>(m.n_parameters) / 1e6,
                m.spec.type.name().c_str(), bytes_text(m.file_bytes).c_str());
}

WrittenModel write_model(const RandomOptions& o) {
  WrittenModel out;
  out.file = o.output;
  out.spec = spec_of(o);
  out.n_parameters = parameter_count(out.spec);  // checks the shape
  check_overwrite(o.output, o.force);
  std::optional<GgufFile> tokenizer;
  if (!o.tokenizer_from.empty()) tokenizer = GgufFile::open(o.tokenizer_from);
  ProgressBar bar("writing (MB)");
  write_random_model(out.spec, o.output, tokenizer ? &*tokenizer : nullptr,
                     [&](uint64_t done, uint64_t total) {
                       stop_if_interrupted();
                       bar.update(done / 1000000, total / 1000000);
                     });
  out.file_bytes = file_bytes(o.output);
  return out;
}

}  // namespace

void add_model_random(CLI::App& model) {
  auto* c = model.add_subcommand("random", "Write a model with random weights");
  auto o = std::make_shared<RandomOptions>();
  c->add_option("shape", o->shape, "One of " + join(preset_names(), ", "));
  c->add_option("-o,--output", o->output, "File to write")->required();
  c->add_flag("--force", o->force, "Overwrite the file");
  c->add_option("--type", o->type,
                "Of all matrices (default bf16), or a mix: " + weight_mix_names());
  c->add_option("--seed", o->seed, "Same seed, same bytes");
  c->add_option("--tokenizer-from", o->tokenizer_from, "Take the tokenizer of this GGUF");
  c->add_option(
      "--arch", o->architecture,
      "One of " + join(architecture_names(), ", ") + "; default " + RandomModelSpec().architecture);
  c->add_option("--name", o->name, "Written as general.name");
  c->add_option("--layers,--n-layers", o->n_layers);
  c->add_option("--d-model", o->d_model, "Width of the residual stream");
  c->add_option("--d-ff", o->d_ff, "Width of the feed-forward part");
  c->add_option("--q-heads,--n-q-heads", o->n_q_heads);
  c->add_option("--kv-heads,--n-kv-heads", o->n_kv_heads, "Default: as many as query heads");
  c->add_option("--head-dim", o->head_dim, "Default: d_model / query heads");
  c->add_option("--vocab,--vocab-size", o->vocab_size, "Default: what the tokenizer has");
  c->add_option("--context,--context-length", o->context_length, "As claimed in the file, tokens");
  c->add_flag("--no-rope", o->no_rope, "Queries and keys are not rotated");
  c->add_option("--rope-base", o->rope_base);
  c->add_option("--rope-scaling", o->rope_scaling, "linear, yarn, dynamic, llama3");
  c->add_option("--rope-factor", o->rope_factor);
  c->add_option("--rope-original-context", o->rope_original_context, "Tokens; yarn, llama3");
  c->add_option("--norm-eps", o->norm_eps);
  c->add_option("--norm-spread", o->norm_spread, "Norm weights within 1 +/- this");
  c->add_flag_callback(
      "--tied", [o] { o->tied = true; }, "The output matrix is the embedding");
  c->add_flag_callback(
      "--untied", [o] { o->tied = false; }, "It has weights of its own");
  add_json(*c, o->json);
  c->callback([=] { print(write_model(*o), o->json); });
}

}  // namespace kvasir::tool
