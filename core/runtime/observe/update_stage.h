// What becomes of blocks, told to those who keep records of them: appended, full, out of the
// window, at a prompt's end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

class UpdateStage {
 public:
  explicit UpdateStage(const RunContext& context) : c_(context) {}

  // The tokens of each piece were appended: NEW and SEALED items to every owner.
  void appended(const Pass& pass);
  // Blocks that have left the window since the last call, as seen by the next query: FINAL items;
  // in decode PROMPT_END items for owners that refresh.
  void left_window(const Pass& pass);
  // Of pieces with LAST_PIECE: every candidate block once, for those who asked.
  void prompt_end(const Pass& pass);
  // After truncation with KVASIR_REBUILD, or for slabs cut inside a block: feeds blocks again.
  void refeed(const SlabOwner& owner, Sequence& seq, uint32_t from_block);

 private:
  void left_window(const SlabOwner& owner, const Pass& pass, const std::vector<uint32_t>& ends);
  void refresh(const Pass& pass);
  void send_candidates(const SlabOwner& owner, const Pass& pass, uint32_t moment);
  // First block of the window, as seen by a query at position n - 1.
  uint32_t window_begin(const Piece& piece, uint32_t n) const;
  SlabPages& pages_of(const SlabOwner& owner, LayerState& state) const {
    return state.slabs[c_.owner_index(&owner)];
  }

  const RunContext& c_;
};

}  // namespace kvasir
