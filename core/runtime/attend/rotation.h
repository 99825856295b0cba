// Keys stored before RoPE, and positions that are slots: copies of keys and queries, rotated to
// where they count as standing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/runtime/attend/part.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// rope_len: length of the sequence, see RopeTable. Parts come with leases of their own, which point
// to the copies afterwards, in formats counted on from those of the storages.
class Rotation {
 public:
  explicit Rotation(const RunContext& context) : c_(context) {}

  // Ends the copies that were made so far, whose memory the next ones take; what follows is of this
  // layer.
  void begin(uint32_t layer) {
    spare_.clear();
    spare_.swap(copies_);
    layer_ = layer;
  }
  // The keys of a part, at the positions of their tokens.
  void to_positions(Part& part, uint64_t rope_len) { rotate_keys(part, rope_len, nullptr); }
  // Keys at their indices among those that their kv head attends to, and the piece's queries at
  // those of their own tokens. The part lists its items.
  void to_slots(Part& part, const Piece& piece, const LayerState& state, uint64_t rope_len);

 private:
  // Index of each key among those its kv head attends to, [kv_head][item in tokens]; UINT32_MAX: it
  // does not.
  using Slots = std::vector<std::vector<uint32_t>>;
  Slots slots_of(const Part& part) const;
  // [lease][token][kv_head] of a part; empty when all bytes of all leases are there.
  std::vector<bool> attended_keys(const Part& part) const;
  std::vector<uint32_t> touched_blocks(const Part& part) const;  // of its leases
  // n floats, not set.
  std::vector<float>& new_copy(uint64_t n);
  // slots null: to positions.
  void rotate_keys(Part& part, uint64_t rope_len, const Slots* slots);
  void rotate_queries(Part& part, const Piece& piece, const LayerState& state, uint64_t rope_len,
                      const Slots& slots);
  // Of one lease, the block-th of its part; keys [block_size][n_kv_heads][head_dim]. A lease of one
  // kv head fills the place of head 0.
  void copy_keys(const kvasir_lease& lease, uint32_t block, const std::vector<bool>& attended,
                 float* keys) const;
  void turn_to_slots(const kvasir_lease& lease, uint32_t block, const Slots& slots,
                     uint64_t rope_len, float* keys) const;
  // pos: [block_size], scratch.
  void turn_to_positions(const kvasir_lease& lease, std::span<uint32_t> pos, uint64_t rope_len,
                         float* keys) const;

  const RopeTable& rope() const { return c_.model.rope(layer_); }

  const RunContext& c_;
  uint32_t layer_ = 0;
  // A layer's window takes megabytes: from the system, they would be set to zero twice per layer.
  std::deque<std::vector<float>> copies_, spare_;
};

}  // namespace kvasir
