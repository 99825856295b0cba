// One strategy of an engine: its plugins, bound, and the stages that drive them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "core/runtime/attend/attend_stage.h"
#include "core/runtime/engine.h"
#include "core/runtime/evict/evict_stage.h"
#include "core/runtime/observe/observe_stage.h"
#include "core/runtime/observe/update_stage.h"
#include "core/runtime/select/select_stage.h"
#include "core/runtime/step/binding.h"
#include "core/runtime/step/run_context.h"

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
  // Why no token can be computed again (or, several be verified in one step) under this strategy:
  // a sentence that names the plugin, or empty.
  std::string cannot_recompute() const;
  std::string cannot_verify() const;
  // Why no prompt can begin with blocks that a storage with a store kept: likewise.
  std::string cannot_restore() const;
  // Tells plugins that positions >= kv_len are gone, or no longer what they were, and feeds
  // update() again from `from_block` on, or as far back as a plugin asks.
  void refeed(Sequence& seq, uint32_t kv_len, uint32_t from_block, bool is_cut);
  // seq_* of every plugin of the strategy.
  void seq_open(Sequence& seq);
  void seq_fork(SequenceId parent, SequenceId child);
  void seq_close(SequenceId id) noexcept;
  void release_step(LayerState& layer);
  // The counters, with what its storage has moved up to now.
  Counters& counted();
  // Before tokens of a prompt are computed: their blocks are named by their content, if they may
  // be. n_together: tokens of the step, on which roundings may depend.
  void name_content(Sequence& seq, std::span<const int32_t> tokens, uint32_t n_together) const;

  Pipeline pipeline;
  std::shared_ptr<const Binding> binding;
  std::shared_ptr<MemoryBridge> bridge;  // as store: of the strategies that share the storage
  // Hybrid mode, or null: the window's. Destroyed after `store`, which points to it.
  std::shared_ptr<MemoryBridge> window_bridge;
  std::shared_ptr<BlockStore> window_store;
  std::shared_ptr<BlockStore> store;
  // Whether all that takes the model's q, k and v in every step, and makes o of them, works on the
  // device that the model's layers are on: what they project there then stays.
  bool works_on_models_device = false;
  // Bytes between host and device so far, of both.
  uint64_t copied_bytes() const {
    return bridge->copied_bytes() + (window_bridge ? window_bridge->copied_bytes() : 0);
  }
  FaultLog faults;
  Counters counters;
  const RunContext context;
  SelectStage select{context};
  AttendStage attend{context};
  UpdateStage update{context};
  ObserveStage observe{context};
  EvictStage evict{context};
  Hash128 content_run{};            // what K and V of all sequences depend on
  bool restore_told = false;        // why nothing is restored was logged
  bool names_content = true;        // false: its blocks get no names
  uint32_t slice_tokens = 0;        // of a piece that selectors choose for; 0 = the whole piece
  uint32_t query_block = 0;         // queries per list in it; 0 = one list
  uint32_t dense_last_queries = 0;  // of a prompt that no selector chooses for

 private:
  void name_run(const EngineOptions& options, const StrategyRun* first);
  bool reads_prompts_densely() const;
  bool finds_models_device() const;
  void share_stream() const;
  RunContext make_context(const Model& model, ThreadPool& pool, const EngineOptions& options);
  std::vector<SlabOwner> make_owners(ThreadPool& pool) const;
  void take_prefill_limits();
};

}  // namespace kvasir
