// Everything a subcommand needs to run a model: checked configuration, plugins, weights, engine.
// They are made in this order, so that a mistake is reported before anything large is loaded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "core/model/tokenizer/tokenizer.h"
#include "core/runtime/engine.h"
#include "core/runtime/plan.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/session/plugin_host.h"

namespace kvasir::tool {

// What a report says about the run as a whole.
struct Setup {
  std::string model;  // file
  Compute compute = Compute::kF32;
  bool deterministic = false;
  uint32_t n_threads = 0;
};
// {"model", "compute", "deterministic", "threads"}.
Json to_json(const Setup& setup);

class Session {
 public:
  // Strategy, plugins and their checks, model file, shape, tokenizer; no weights yet.
  explicit Session(const Options& options);
  ~Session();

  const GgufFile& file() const { return *file_; }
  const ModelShape& shape() const { return shape_; }
  const Tokenizer& tokenizer() const;  // Error when the file has none
  const StrategyConfig& strategy() const { return strategy_; }
  // Tokens of context: -c, else the strategy's max_seq_len, else `needed`.
  uint32_t context_or(uint32_t needed) const;
  std::string context_source() const;  // "-c", or where max_seq_len was set
  PluginHost& host() { return host_; }
  PluginRegistry& registry() { return host_.registry(); }
  HostServices& services() { return host_.services(); }
  ThreadPool& pool() { return host_.pool(); }
  Setup setup() const;

  // Before the model is loaded: engines take steps of at least so many tokens.
  void take_steps_of(uint32_t n_tokens) { least_step_tokens_ = n_tokens; }
  // Likewise: sequences of the session's own strategy hold at most so many tokens, however long the
  // context is, and load() asks for no more memory.
  void hold_at_most(uint32_t n_tokens) { most_held_ = n_tokens; }
  MemoryPlan plan(uint32_t max_context, uint32_t max_sequences = 1);
  // Throws an Error when one sequence needs more memory than the machine has; else loads the
  // weights. A step of the engine takes a chunk of one sequence and a token of each other one.
  Engine& load(uint32_t max_context, uint32_t max_sequences = 1);
  // Puts another model around the one that load() is about to make.
  using WrapModel = std::function<std::unique_ptr<Model>(std::unique_ptr<Model>)>;
  void wrap_model(WrapModel wrap) { wrap_model_ = std::move(wrap); }
  // Makes another engine over the same weights, for at most max_sequences. Its first strategy is
  // the session's.
  std::unique_ptr<Engine> make_engine(uint32_t max_context, uint32_t max_sequences);
  Pipeline pipeline(const StrategyConfig& strategy);  // for Engine::add_strategy()
  // For the sequences of all engines: what is available less everything else that is planned; of a
  // device that cannot be asked, no limit. Known once the weights are loaded.
  const MemoryBytes& sequence_memory() const { return sequence_memory_; }
  Model::Placement placement() const { return model_->placement(); }  // after load()
  double load_ms() const { return load_ms_; }
  uint64_t planned_bytes() const { return planned_bytes_; }  // of one sequence, by load()

 private:
  void load_model(uint32_t max_queries);
  uint32_t most_step_tokens(uint32_t max_sequences) const;
  Model::Options model_options(uint32_t max_queries) const;
  EngineOptions engine_options(uint32_t max_context, uint32_t max_sequences) const;

  Options options_;
  StrategyConfig strategy_;
  Compute compute_;  // as asked for
  PluginHost host_;
  std::optional<GgufFile> file_;
  ModelShape shape_;
  mutable std::unique_ptr<Tokenizer> tokenizer_;
  mutable std::optional<uint64_t> model_hash_;  // once somebody asked
  WrapModel wrap_model_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  uint32_t least_step_tokens_ = 0;
  uint32_t most_held_ = UINT32_MAX;
  double load_ms_ = 0;
  uint64_t planned_bytes_ = 0;
  MemoryBytes sequence_memory_;
};

}  // namespace kvasir::tool
