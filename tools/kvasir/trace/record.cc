// kvasir trace record: what a model computes over a text, into a file.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

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
#include "tools/kvasir/trace/recorder.h"
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

void record(const Options& options, const RecordOptions& o) {
  check_overwrite(o.output, o.force);
  if (o.steps == 0) throw input_error("-n must be above 0");
  const std::string text = read_file(o.text, "-f");
  Session session(options);
  if (const std::string why = why_no_trace(session.shape()); !why.empty())
    throw input_error("a trace of " + session.shape().architecture + " cannot be recorded: " + why);
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
  TraceHeader header = trace_header(session.shape(), n_tokens - o.steps, o.steps);
  header.layers = layers_of(o.layers, session.shape().n_layers);
  header.type = o.type == "f32" ? kernels::ElementType::kF32 : kernels::ElementType::kF16;
  check_memory(Trace::bytes(header), "a trace of " + std::to_string(n_tokens) + " tokens", "",
               "lower -c, or name some --layers");
  Trace trace(header);
  session.wrap_model([&](std::unique_ptr<Model> model) {
    auto recording = std::make_unique<RecordingModel>(std::move(model));
    recording->record(trace);
    return recording;
  });
  ProgressBar bar("trace");
  record_tokens(session.load(n_tokens), tokens, o.steps, [&](uint32_t done) {
    bar.update(done, n_tokens);
    stop_if_interrupted();
  });
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
