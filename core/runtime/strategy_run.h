// One strategy of an engine: its plugins, bound, and the stages that drive them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/runtime/attend_stage.h"
#include "core/runtime/binding.h"
#include "core/runtime/engine.h"
#include "core/runtime/run_context.h"
#include "core/runtime/select_stage.h"
#include "core/runtime/state_stage.h"

namespace kvasir {

struct StrategyRun {
  // Takes storage and backend of `first` where they are the same; null: there is none yet.
  StrategyRun(const Model& model, Pipeline pipeline, ThreadPool& pool, HostServices& services,
              const EngineOptions& options, const StrategyRun* first);

  const kvasir_geometry& geometry() const { return binding->geometry; }
  bool shares_storage(const StrategyRun& other) const { return store == other.store; }
  // Whether a prompt that this strategy reads can be read for `other`, too: K, V and attention are
  // the same, only plugins' own state differs.
  bool can_lead(const StrategyRun& other) const;
  // seq_* of every plugin of the strategy.
  void seq_open(SequenceId id);
  void seq_fork(SequenceId parent, SequenceId child);
  void seq_close(SequenceId id) noexcept;
  void release_step(LayerState& layer);

  Pipeline pipeline;
  std::shared_ptr<const Binding> binding;
  std::shared_ptr<BlockStore> store;
  RunContext context;
  SelectStage select{context};
  AttendStage attend{context};
  StateStage state{context};
  uint32_t slice_tokens = 0;  // of a piece that selectors choose for; 0 = the whole piece

 private:
  bool reads_prompts_densely() const;
  void add_owner(Representative* representative, Selector* selector, const kvasir_layout& layout);
  void add_owners();
  void find_leaders();
};

}  // namespace kvasir
