// What plugins are told between selections: touched blocks, attention mass, and the eviction plans
// they answer with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/runtime/attend_stage.h"
#include "core/runtime/run_context.h"

namespace kvasir {

class StateStage {
 public:
  explicit StateStage(RunContext& context) : c_(context) {}

  // After rows [kv_len - n_q, kv_len) of each sequence were appended: NEW and SEALED items to every
  // owner, then seals full blocks.
  void appended(uint32_t layer, const std::vector<BatchRow>& rows, uint32_t moment, uint32_t flags);
  // Blocks that have left the window since the last call, as seen by the next query: FINAL items;
  // in decode PROMPT_END items for owners that refresh.
  void left_window(uint32_t layer, const std::vector<BatchRow>& rows, uint32_t moment,
                   uint32_t flags);
  // P4: every candidate block once, for those who asked.
  void prompt_end(uint32_t layer, const std::vector<BatchRow>& rows, uint32_t flags);
  // P2: the prompt's last queries, for selectors with prefill().
  void prefill_queries(uint32_t layer, const BatchRow& row, const float* q, uint64_t n_queries,
                       uint32_t flags);
  // P3 or D4: attention mass to observers and owners that asked.
  void observe(uint32_t layer, const std::vector<BatchRow>& rows, AttendStage& attention,
               bool prefill, uint32_t flags);
  // P5, chunk end or D5: plans of every layer, applied at once.
  void evict(const std::vector<BatchRow>& rows, uint32_t plan_at, uint32_t moment, uint32_t flags);
  // After truncation with KVASIR_REBUILD, or for slabs cut inside a block: feeds blocks again.
  void refeed(SlabOwner& owner, Sequence& seq, uint32_t from_block);

 private:
  void refresh(uint32_t layer, const std::vector<BatchRow>& rows, uint32_t flags);
  void send_candidates(SlabOwner& owner, uint32_t layer, const std::vector<BatchRow>& rows,
                       uint32_t moment, uint32_t flags);
  void send(SlabOwner& owner, uint32_t layer, const std::vector<BatchRow>& rows, uint32_t moment,
            uint32_t flags, const std::vector<kvasir_update_item>& items);
  void observe_selector(Selector& selector, uint32_t layer, const std::vector<BatchRow>& rows,
                        const std::vector<std::vector<HeadMass>>& mass, uint32_t n_queries,
                        uint32_t moment, uint32_t flags);
  void feed_mass(SlabOwner& owner, uint32_t layer, const std::vector<BatchRow>& rows,
                 const std::vector<std::vector<HeadMass>>& mass, uint32_t moment, uint32_t flags);
  void apply(const BatchRow& row, uint32_t layer, const kvasir_selection& plan,
             const std::vector<HeadSelection>& heads, const Candidates& candidates);
  void free_dead_blocks(LayerState& state, const std::set<uint32_t>& among);
  void pack(const BatchRow& row, uint32_t layer);
  std::string plan(Selector& selector, uint32_t layer, const std::vector<BatchRow>& due,
                   const std::vector<const Candidates*>& candidates, uint32_t moment,
                   uint32_t flags);
  // Calls fn unless the selector was put aside; what it throws or returns is the selector's fault.
  template <class Fn>
  void guarded(Selector& selector, const char* function, uint32_t layer, uint64_t seq,
               const char* instead, Fn&& fn);

  RunContext& c_;
  // Where a selector or the representative works on a device.
  MemoryBridge::Buffer q_hold_, mass_hold_;
};

}  // namespace kvasir
