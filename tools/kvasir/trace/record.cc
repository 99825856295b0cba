// kvasir trace record: what a model computes over a text, into a file.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "core/error.h"
#include "tools/kvasir/cli/files.h"
#include "tools/kvasir/cli/interrupt.h"
#include "tools/kvasir/cli/parse.h"
#include "tools/kvasir/cli/progress_bar.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/trace/recording_model.h"

namespace kvasir::tool {
namespace {

struct RecordOptions {
  std::string text, output, layers, type = "f16";
  uint32_t steps = 16;
  bool force = false;
};

struct Recorded {
  TraceHeader header;
  std::string file;
  uint64_t bytes = 0;
};

Json to_json(const Recorded& r) {
  return {{"file", r.file},
          {"bytes", r.bytes},
          {"model", r.header.model},
          {"layers", r.header.layers},
          {"context", r.header.context},
          {"steps", r.header.steps}};
}

std::string to_text(const Recorded& r) {
  return format("%s: %zu layers of %s, %u tokens read and %u decoded, %s\n", r.file.c_str(),
                r.header.layers.size(), r.header.model.c_str(), r.header.context, r.header.steps,
                bytes_text(r.bytes).c_str());
}

// What a replay could not show is refused, rather than recorded and then read as something else.
void check_model(const ModelShape& shape) {
  const auto refuse = [&](const std::string& why) {
    throw input_error("a trace of " + shape.architecture + " cannot be recorded: " + why);
  };
  if (shape.n_sliding_layers() > 0) refuse("it has layers with a sliding window");
  if (shape.softmax_softcap != 0.0f) refuse("its attention has a soft cap");
  if (shape.rope.scaling == RopeScaling::kDynamicNtk)
    refuse("its rotation depends on the length of the sequence");
}

std::vector<uint32_t> layers_of(const std::string& list, uint32_t n_layers) {
  std::vector<uint32_t> layers(n_layers);
  std::iota(layers.begin(), layers.end(), 0);
  if (list.empty()) return layers;
  layers = parse_counts(list, "--layers", 0);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] >= n_layers)
      throw input_error("--layers: there is no layer " + std::to_string(layers[i]) +
                        ", the model has " + std::to_string(n_layers));
    if (i > 0 && layers[i] <= layers[i - 1]) throw input_error("--layers must ascend");
  }
  return layers;
}

TraceHeader header_of(const ModelShape& shape, const RecordOptions& o, uint32_t n_tokens) {
  TraceHeader h;
  h.model = shape.name.empty() ? shape.architecture : shape.name;
  h.layers = layers_of(o.layers, shape.n_layers);
  h.n_model_layers = shape.n_layers;
  h.context = n_tokens - o.steps;
  h.steps = o.steps;
  h.n_q_heads = shape.n_q_heads;
  h.n_kv_heads = shape.n_kv_heads;
  h.head_dim = shape.head_dim;
  h.v_head_dim = shape.v_head_dim;
  h.d_model = shape.d_model;
  h.softmax_scale = shape.attention_scale();
  h.rope = shape.rope;
  h.type = o.type == "f32" ? kernels::ElementType::kF32 : kernels::ElementType::kF16;
  return h;
}

void read(Engine& engine, std::span<const TokenId> tokens, uint32_t steps) {
  const SequenceId seq = engine.open();
  ProgressBar bar("trace");
  const auto context = static_cast<uint32_t>(tokens.size() - steps);
  engine.prefill(seq, tokens.first(context), {},
                 {.progress =
                      [&](uint32_t done, uint32_t) {
                        bar.update(done, tokens.size());
                        return !is_interrupted();
                      },
                  .all_logits = {}});
  stop_if_interrupted();
  std::vector<float> logits(engine.vocab_size());
  for (uint32_t step = 0; step < steps; ++step) {
    const Engine::DecodeItem item{seq, tokens[context + step]};
    engine.decode({&item, 1}, logits);
    bar.update(context + step + 1, tokens.size());
    stop_if_interrupted();
  }
  engine.close(seq);
}

void record(const Options& options, const RecordOptions& o) {
  check_overwrite(o.output, o.force);
  if (o.steps == 0) throw input_error("-n must be above 0");
  const std::string text = read_file(o.text, "-f");
  Session session(options);
  check_model(session.shape());
  std::vector<TokenId> tokens = session.tokenizer().encode(text, {});
  if (options.ctx_size && tokens.size() < options.ctx_size)
    throw input_error(o.text + ": has " + std::to_string(tokens.size()) + " tokens, -c asks for " +
                      std::to_string(options.ctx_size));
  if (options.ctx_size) tokens.resize(options.ctx_size);
  if (tokens.size() <= o.steps)
    throw input_error("-n takes the last " + std::to_string(o.steps) + " of " +
                      std::to_string(tokens.size()) +
                      " tokens, and a prompt must be left: lower -n or give more text");
  const auto n_tokens = static_cast<uint32_t>(tokens.size());
  const TraceHeader header = header_of(session.shape(), o, n_tokens);
  check_memory(Trace::bytes(header), "a trace of " + std::to_string(n_tokens) + " tokens", "",
               "lower -c, or name some --layers");
  Trace trace(header);
  session.wrap_model([&](std::unique_ptr<Model> model) {
    return std::make_unique<RecordingModel>(std::move(model), trace);
  });
  read(session.load(n_tokens), tokens, o.steps);
  write_trace(trace, o.output);
  print(Recorded{header, o.output, file_bytes(o.output)}, options.json);
}

}  // namespace

void add_trace_record(CLI::App& trace) {
  auto* c = trace.add_subcommand(
      "record",
      "Queries, keys, values and layer inputs of a model over a text, as a safetensors file. "
      "Attention is dense; the last -n tokens of the text are decoded, the others are the prompt");
  auto options = std::make_shared<Options>();
  auto o = std::make_shared<RecordOptions>();
  add_model_flags(*c, *options);
  add_json(*c, options->json);
  c->add_option("-f,--file", o->text, "Text file")->required();
  c->add_option("-o,--output", o->output, "Trace to write")->required();
  c->add_flag("--force", o->force, "Replace the file");
  c->add_option("-n,--steps", o->steps, "Tokens decoded")->capture_default_str();
  c->add_option("--layers", o->layers, "Layers to record, as 0,8,16; default: all");
  c->add_option("--type", o->type, "Element type of the file")
      ->check(CLI::IsMember({"f16", "f32"}))
      ->capture_default_str();
  c->callback([=] { record(*options, *o); });
}

}  // namespace kvasir::tool
