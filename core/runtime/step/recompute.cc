// Recomputation; see recompute.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/recompute.h"

#include <algorithm>
#include <string>
#include <vector>

namespace kvasir {
namespace {

// The step has no other item: tokens that are left move to the front.
void narrow(Lane& lane, Lane::Redo& redo, uint32_t layer, StepBuffers& b) {
  std::vector<float> k(redo.positions.size() * b.k_width), v(redo.positions.size() * b.v_width);
  lane.run.store->read_tokens(redo.piece.seq->layers[layer], redo.positions, k.data(), v.data());
  lane.run.context.model.read_hidden(b.h.data(), 0, b.n);
  const std::vector<uint32_t> left =
      (*redo.narrow)({layer, redo.positions, b.k.data(), b.v.data(), k.data(), v.data()});
  size_t at = 0, n = 0;
  const auto move = [&](std::vector<float>& tokens, uint64_t width) {
    std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(at * width), width,
                tokens.begin() + static_cast<ptrdiff_t>(n * width));
  };
  for (const uint32_t pos : left) {
    while (at < redo.positions.size() && redo.positions[at] < pos) ++at;
    if (at == redo.positions.size() || redo.positions[at] != pos)
      throw Error(ErrorKind::kInternal,
                  "position " + std::to_string(pos) + " is not among those computed again");
    move(b.h, b.d_model);
    move(b.q, b.q_width);
    move(b.k, b.k_width);
    move(b.v, b.v_width);
    redo.positions[n] = b.positions[n] = pos;
    ++n, ++at;
  }
  redo.positions.resize(n);
  redo.piece.n_q = b.n = static_cast<uint32_t>(n);
}

// Under no name: what was placed is not what a prompt would give.
void seal_placed(Lane& lane, const Lane::Redo& redo, uint32_t layer) {
  const uint32_t b = lane.run.geometry().block_size;
  const BlockStore::Full full{&redo.piece.seq->layers[layer], redo.first_position / b,
                              redo.piece.kv_len / b};
  lane.run.store->seal({&full, 1});
}

}  // namespace

void place_layer(Lane& lane, Lane::Redo& redo, uint32_t layer) {
  lane.run.store->append(redo.piece.seq->layers[layer], layer, redo.first_position,
                         {redo.placed->k(), redo.placed->v()}, redo.placed->n_tokens());
}

void recompute_layer(Lane& lane, Lane::Redo& redo, uint32_t layer, StepBuffers& buffers) {
  static const LayerSelection everything = LayerSelection::everything();
  if (redo.narrow && *redo.narrow) narrow(lane, redo, layer, buffers);
  LayerState& state = redo.piece.seq->layers[layer];
  lane.run.store->rewrite(state, layer, redo.positions, buffers.kv_of(redo.piece));
  Pass pass{layer, {redo.piece}, buffers.activations(false)};
  lane.run.attend.attend(pass, {&everything}, nullptr, buffers.attention_rows());
  if (redo.placing) seal_placed(lane, redo, layer);
  lane.run.release_step(state);
}

void feed_again(Lane& lane, const Lane::Redo& redo) {
  StrategyRun& run = lane.run;
  Sequence& seq = *redo.piece.seq;
  const uint32_t b = run.geometry().block_size;
  const uint32_t from = redo.first_position / b;
  seq.content.truncate(redo.first_position);
  seq.content.taint();
  for (LayerState& state : seq.layers) {
    for (size_t owner = 0; owner < run.context.owners.size(); ++owner)
      run.context.owners[owner].slab.truncate(state.slabs[owner], from * b);
    state.selection = {};
  }
  run.refeed(seq, from * b, from, false);
}

}  // namespace kvasir
