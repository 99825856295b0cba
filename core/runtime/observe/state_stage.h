// What plugins are told between selections: touched blocks, attention mass, and the eviction plans
// they answer with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "core/runtime/attend/attend_stage.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class StateStage {
 public:
  explicit StateStage(RunContext& context) : c_(context) {}

  // Rows [kv_len - n_q, kv_len) of each sequence were appended: NEW and SEALED items to every
  // owner.
  void appended(uint32_t layer, const std::vector<Piece>& pieces);
  // Seals the blocks that these rows filled.
  void seal(uint32_t layer, const std::vector<Piece>& pieces);
  // Blocks that have left the window since the last call, as seen by the next query: FINAL items;
  // in decode PROMPT_END items for owners that refresh.
  void left_window(uint32_t layer, const std::vector<Piece>& pieces);
  // Hybrid mode: blocks that have left the window move to the context's storage. Called when no
  // part of the layer's attention points to them any more.
  void to_context(uint32_t layer, const Piece& piece);
  // Of rows with LAST_PIECE: every candidate block once, for those who asked.
  void prompt_end(uint32_t layer, const std::vector<Piece>& pieces);
  // The prompt's last queries, for selectors with prefill().
  void prefill_queries(uint32_t layer, const Piece& piece, const float* q, uint64_t n_queries);
  // After attention: its mass to observers and owners that asked.
  void observe(uint32_t layer, const std::vector<Piece>& pieces, AttendStage& attention);
  // At the step's end: plans of every layer, applied at once.
  void evict(const std::vector<Piece>& pieces, uint32_t plan_at);
  // After truncation with KVASIR_REBUILD, or for slabs cut inside a block: feeds blocks again.
  void refeed(SlabOwner& owner, Sequence& seq, uint32_t from_block);

 private:
  void refresh(uint32_t layer, const std::vector<Piece>& pieces);
  void send_candidates(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces,
                       uint32_t moment);
  void send(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces, uint32_t moment,
            std::vector<kvasir_update_item> items);
  // Hybrid mode: host copies of the window's blocks that `reader` cannot read where they are.
  struct HostCopies {
    std::deque<std::vector<std::byte>> bytes;
    std::deque<kvasir_lease> leases;
  };
  void copy_unreadable(const Instance& reader, std::vector<kvasir_update_item>& items,
                       HostCopies& copies) const;
  // Rows whose mass somebody wants, and from which query on.
  struct Watched {
    std::vector<Piece> pieces;
    std::vector<uint32_t> from_pos;
  };
  static Watched watched(const std::vector<Piece>& pieces, uint32_t mass_at, uint32_t last_queries);
  void observe_selector(Selector& selector, uint32_t layer, const Watched& watched,
                        const std::vector<std::vector<HeadMass>>& mass);
  void feed_mass(SlabOwner& owner, uint32_t layer, const std::vector<Piece>& pieces,
                 const std::vector<std::vector<HeadMass>>& mass);
  void apply(const Piece& piece, uint32_t layer, const kvasir_selection& plan,
             const std::vector<HeadSelection>& heads, const Candidates& candidates);
  void free_dead_blocks(LayerState& state, const std::set<uint32_t>& among);
  void pack(const Piece& piece, uint32_t layer);
  std::string plan(Selector& selector, uint32_t layer, const std::vector<Piece>& due,
                   const std::vector<const Candidates*>& candidates);
  // Calls fn unless the selector was put aside; what it throws or returns is the selector's fault.
  template <class Fn>
  void guarded(Selector& selector, const char* function, uint32_t layer,
               const std::vector<Piece>& pieces, const char* instead, Fn&& fn);

  RunContext& c_;
  // Where a selector or the representative works on a device.
  MemoryBridge::Buffer q_hold_, mass_hold_;
};

}  // namespace kvasir
