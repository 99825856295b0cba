// See session.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/session/session.h"

#include <algorithm>
#include <chrono>

#include "core/platform/memory.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/model_identity.h"
#include "tools/kvasir/session/planning.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

Options with_threads(Options options, const StrategyConfig& strategy) {
  if (options.threads == 0) options.threads = strategy.cache.threads_num.value;
  return options;
}

}  // namespace

Json to_json(const Setup& s) {
  return {{"model", s.model},
          {"compute", name(s.compute)},
          {"deterministic", s.deterministic},
          {"threads", s.n_threads}};
}

Session::Session(const Options& options)
    : options_(options),
      strategy_(resolve_strategy(options)),
      compute_(wanted_compute(options)),
      host_(with_threads(options, strategy_), strategy_.cache.slow_call_seconds.value) {
  build_pipeline(strategy_, registry(),
                 services());  // finds mistakes before the model file is opened
  if (options.model.empty()) throw input_error("no model: give -m FILE.gguf");
  file_ = GgufFile::open(options.model);
  shape_ = read_shape(*file_);
}

Session::~Session() = default;

uint32_t Session::context_or(uint32_t needed) const {
  const uint32_t wanted = options_.ctx_size ? options_.ctx_size : strategy_.cache.max_seq_len.value;
  return wanted ? wanted : needed;
}

std::string Session::context_source() const {
  const auto& configured = strategy_.cache.max_seq_len;
  return options_.ctx_size || !configured.value ? "-c"
                                                : "max_seq_len (" + configured.origin.text() + ")";
}

const Tokenizer& Session::tokenizer() const {
  if (!tokenizer_) tokenizer_ = Tokenizer::from_gguf(*file_);
  return *tokenizer_;
}

Setup Session::setup() const {
  const Model::Arithmetic arithmetic = Model::arithmetic(*file_, model_options(1));
  return {options_.model, arithmetic.compute, arithmetic.tokens_are_independent,
          host_.pool().n_workers()};
}

uint32_t Session::most_step_tokens(uint32_t max_sequences) const {
  return std::max(least_step_tokens_, step_tokens(strategy_, max_sequences));
}

EngineOptions Session::engine_options(uint32_t max_context, uint32_t max_sequences) const {
  EngineOptions made;
  made.max_context = max_context;
  made.max_sequences = max_sequences;
  made.max_step_tokens = most_step_tokens(max_sequences);
  made.seed = options_.seed;
  made.model_hash = [this] {
    if (!model_hash_) model_hash_ = model_hash(*file_);
    return *model_hash_;
  };
  return made;
}

Model::Options Session::model_options(uint32_t max_queries) const {
  Model::Options made;
  made.compute = compute_;
  made.max_batch_tokens = max_queries;
  made.deterministic = options_.deterministic;
  made.device_layers = options_.gpu_layers;
  made.device_library = device_library();
  return made;
}

MemoryPlan Session::plan(uint32_t max_context, uint32_t max_sequences) {
  Pipeline pipeline = build_pipeline(strategy_, registry(), services());
  const Model::Options model = model_options(most_step_tokens(max_sequences));
  return make_plan(shape_, Model::plan_memory(*file_, model), pipeline,
                   engine_options(max_context, max_sequences), vocabulary_bytes(shape_));
}

void Session::load_model(uint32_t max_queries) {
  const auto begin = std::chrono::steady_clock::now();
  model_ = Model::load(*file_, pool(), model_options(max_queries));
  if (wrap_model_) model_ = wrap_model_(std::move(model_));
  load_ms_ =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

Engine& Session::load(uint32_t max_context, uint32_t max_sequences) {
  const uint32_t held = std::min(max_context, most_held_);
  const MemoryPlan needed = plan(held);
  planned_bytes_ = needed.total();
  check_memory(
      needed.total(), "a context of " + std::to_string(held) + " tokens",
      "weights " + bytes_text(needed.weight_bytes) + ", K and V " + bytes_text(needed.kv_bytes),
      "lower -c, or see `kvasir plan`");
  const uint64_t on_device = free_device_memory(needed, model_options(1));
  check_device_memory(needed, on_device);
  const MemoryInfo machine = memory_info();
  const MemoryPlan all =
      max_sequences == 1 && held == max_context ? needed : plan(max_context, max_sequences);
  const MemoryBytes others{all.total() - all.sequence_bytes(),
                           all.device_bytes() - all.device_sequence_bytes};
  sequence_memory_ = MemoryBytes(machine.available_bytes, on_device) - others;
  load_model(most_step_tokens(max_sequences));
  engine_ = make_engine(max_context, max_sequences);
  return *engine_;
}

std::unique_ptr<Engine> Session::make_engine(uint32_t max_context, uint32_t max_sequences) {
  return std::make_unique<Engine>(*model_, pipeline(strategy_), pool(), services(),
                                  engine_options(max_context, max_sequences));
}

Pipeline Session::pipeline(const StrategyConfig& strategy) {
  return build_pipeline(strategy, registry(), services());
}

}  // namespace kvasir::tool
