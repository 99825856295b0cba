// From selections to attention: parts, residency, the backend's run, attention mass afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <vector>

#include "core/runtime/select/contribution.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Attention mass of one sequence and layer, by kv head: positions ascending, values per key.
struct HeadMass {
  std::vector<uint32_t> pos;
  std::vector<float> value;  // [pos][group_size]
};

class AttendStage {
 public:
  explicit AttendStage(const RunContext& context);

  // o [queries][n_q_heads][v_dim]; selections[i] belongs to pass.pieces[i], whose place is set to
  // i. Several pieces may be of one sequence, in the order of their queries. A piece whose blocks
  // are lost or whose attention fails ends its sequence and leaves the pass, the others go on.
  // `contribution` (null: none) is merged with the result.
  void attend(Pass& pass, const std::vector<const LayerSelection*>& selections,
              const Contribution* contribution, float* o);
  // As if the last attend() of `other`, over the same blocks, had been made here: for strategies
  // that share a dense prefill.
  void adopt(const AttendStage& other);
  // Mass over the queries at positions >= from_pos[i] of pass.pieces[i], which are pieces of the
  // last attend() by their places; a piece whose from_pos lies beyond its queries gets none.
  // window_only drops keys before the window. values = false: only which keys were attended; the
  // backend need not know mass. [pieces][kv_head]
  std::vector<std::vector<HeadMass>> mass(const Pass& pass, const std::vector<uint32_t>& from_pos,
                                          bool window_only, bool values);

 private:
  struct Part {  // owns what a kvasir_attn_part points to
    std::vector<kvasir_attn_range> ranges;
    std::vector<uint32_t> items;
    std::vector<float> weights;
    std::vector<kvasir_lease> leases;  // packed blocks first, or rotated copies; empty: the layer's
    bool null_items = true;
    kvasir_attn_part part{};
    uint32_t place = 0;      // Piece::place
    bool in_window = false;  // for the window's backend
  };
  // A backend, the way to where it works, and what it works on there.
  struct Side {
    Attention* backend = nullptr;
    MemoryBridge* bridge = nullptr;
    bool in_window = false;
    std::deque<MemoryBridge::Buffer> queries{};  // with their rotations and positions
    MemoryBridge::Buffer o_hold{}, lse_hold{}, mass_lse_hold{}, mass_hold{};
    std::vector<float> o{}, lse{};  // of hybrid mode, before the merge
  };
  void add_parts(uint32_t layer, uint32_t place, const Piece& piece,
                 const LayerSelection& selection, const Queries& queries, bool constant);
  Part& new_part(uint32_t place, const LayerState& state, uint32_t unit, const float* q,
                 const Queries& queries);
  void add_dense_range(Part& part, const Piece& piece, uint32_t head, uint32_t n_blocks);
  void add_block_range(Part& part, const Piece& piece, uint32_t head,
                       const LayerSelection& selection, bool sink_and_selected, bool window);
  void add_token_range(Part& part, const Piece& piece, uint32_t head, const LayerState& state,
                       const LayerSelection& selection);
  void close_part(Part& part, const Piece& piece, LayerState& state, bool rotate);
  // Index of each key among those its kv head attends to, [kv_head][item]; UINT32_MAX: it does not.
  using Slots = std::vector<std::vector<uint32_t>>;
  void make_resident(const Part& part, LayerState& state);
  // Hybrid mode: the last part becomes one of the context's blocks and one of the window's.
  void split_last_part(const LayerState& state);
  Part narrowed(const Part& whole, const std::vector<kvasir_lease>& leases, bool in_window) const;
  std::vector<kvasir_lease> leases_of(const LayerState& state) const;
  void rotate_keys(Part& part, uint64_t rope_len, const Slots* slots);
  // [lease][token][kv_head] of a part; empty when all bytes of all leases are there.
  std::vector<bool> attended_keys(const Part& part) const;
  Slots slots_of(const Part& part) const;
  void rotate_queries(Part& part, const Piece& piece, const LayerState& state, uint64_t rope_len,
                      const Slots& slots);
  uint32_t mass_follows(uint32_t layer, const std::vector<Piece>& pieces) const;
  // Over the parts of the rows, which are those that have not failed.
  void run(uint32_t layer, const std::vector<Piece>& pieces, float* o);
  // The parts of one backend; false: there are none.
  bool run_side(Side& side, uint32_t layer, const std::vector<Piece>& pieces, float* o, float* lse);
  // Adds what a backend made of its parts to o and lse_, for the pairs of query and head it named.
  void merge_side(const Side& side, const std::vector<Piece>& pieces, float* o);
  void merge_contribution(const std::vector<Piece>& pieces, float* o);
  void check_finite(uint32_t layer, const Piece& piece, const float* o) const;
  void report(uint32_t layer, const std::vector<Piece>& pieces) const;
  void count(const Piece& piece, const LayerSelection& selection, const LayerState& state);
  void count_bytes(const Piece& piece, size_t first_part);
  uint64_t attended_tokens(const Piece& piece, const LayerSelection& selection,
                           const LayerState& state, uint32_t head, uint64_t* selected) const;

  RunContext& c_;
  std::deque<Part> parts_;
  std::vector<kvasir_attn_part> abi_parts_;
  void hand_over_queries(Side& side);
  static void bring_back(const Side& side, const std::vector<Piece>& pieces,
                         const kvasir_view& written, const kvasir_view& into);
  struct MassCall;
  // Position of a row's first key; UINT32_MAX: it has none.
  uint32_t first_key(const Part& part, const kvasir_attn_range& range) const;
  void ask_mass(Side& side, uint32_t layer, const std::vector<Piece>& pieces, MassCall& of);
  std::vector<float> lse_;
  std::deque<Side> sides_;  // the context's, or the only one; in hybrid mode the window's
  std::deque<std::vector<float>> rotated_;  // scratch copies of rotated keys and queries
  uint64_t n_queries_ = 0;
  const float* contributed_o_ = nullptr;  // of the attend() that runs
  const float* contributed_lse_ = nullptr;
};

}  // namespace kvasir
