// Queries of later layers, for who looks ahead; see step_loop.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "core/runtime/step/step_loop.h"

namespace kvasir {

// The query of a later layer from this layer's input, for sequences that decode one token.
void StepLoop::speculate(Lane& lane, uint32_t layer) {
  Pass pass = decoding(lane, layer);
  const uint32_t target = lane.run.select.speculation_target(pass);
  if (target == 0) return;
  timer_.in_model([&] {
    gather(pass, Rows::kInput);
    query_ahead(pass, target, Rows::kInput);
  });
  StepTimer::in_part(lane.choose_nanos, [&] { lane.run.select.speculate(pass, target); });
}

// The next layer's query from this layer's state, to which only the feed-forward network has not
// been added. That network is most of a layer's weights: time enough for what is to be read.
void StepLoop::foresee(Lane& lane, Pass& pass) {
  const auto ahead = [&] {
    const uint32_t target = pass.layer + 1;
    timer_.in_model([&] {
      if (query_stays(lane, pass, target)) return;
      gather(pass, Rows::kHidden);
      query_ahead(pass, target, Rows::kHidden);
    });
    StepTimer::in_part(lane.choose_nanos, [&] { lane.run.select.foresee(pass); });
  };
  timer_.in_lane(lane, [&] { guard_pieces(lane.pieces, ahead); });
}

// Where the state is on a device, and who scores works there, and nobody asks for anything else. In
// steps of decoded tokens alone: all rows of the step go through the target's weights.
bool StepLoop::query_stays(const Lane& lane, Pass& pass, uint32_t target) {
  const Representative& representative = *lane.run.pipeline.representative;
  if (!b_.on_device || pass.pieces.size() != b_.n || lane.run.select.reads_input(target) ||
      !representative.reads(KVASIR_MEM_DEVICE))
    return false;
  std::vector<Model::Turn> turns;
  for (const Piece& piece : pass.pieces)
    turns.push_back({piece.q_begin,
                     {b_.positions.data() + piece.q_begin, 1},
                     std::max(piece.seq->prompt_end, piece.kv_len)});
  q_target_.resize(b_.n * b_.q_width);
  const float* const there =
      model_.query_ahead_on_device(target, b_.h.data(), b_.n, turns, q_target_.data());
  if (!there) return false;
  pass.in = {};
  pass.in.n = b_.n;
  pass.in.q = ModelRows(model_, q_target_.data(), there);
  return true;
}

Pass StepLoop::decoding(const Lane& lane, uint32_t layer) {
  Pass pass{layer, {}};
  for (const Piece& piece : lane.pieces)
    if (piece.decodes() && !piece.drafts) pass.pieces.push_back(piece);
  return pass;
}

// The rows of the pieces into x_decode_, where each piece begins from now on.
void StepLoop::gather(Pass& pass, Rows rows) {
  x_decode_.resize(pass.pieces.size() * b_.d_model);
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const uint32_t row = std::exchange(pass.pieces[i].q_begin, i);
    if (rows == Rows::kHidden)
      model_.read_hidden(b_.h.data(), row, 1);
    else
      model_.read_input(b_.x.data(), row, 1);
    const std::vector<float>& from = rows == Rows::kHidden ? b_.h : b_.x;
    std::copy_n(from.data() + row * b_.d_model, b_.d_model, x_decode_.data() + i * b_.d_model);
  }
}

// The target's queries of what is gathered, which is its input from here on.
void StepLoop::query_ahead(Pass& pass, uint32_t target, Rows rows) {
  const ModelShape& s = model_.shape();
  const auto n = static_cast<uint32_t>(pass.pieces.size());
  q_target_.resize(n * b_.q_width);
  if (rows == Rows::kHidden)
    model_.query_ahead(target, x_decode_.data(), n, x_decode_.data(), q_target_.data());
  else
    model_.project_qkv(target, x_decode_.data(), n, q_target_.data(), nullptr, nullptr);
  for (const Piece& piece : pass.pieces) {
    const uint32_t pos[] = {piece.first_pos()};
    model_.rope(target).apply(q_target_.data() + piece.q_begin * b_.q_width, 1, s.n_q_heads,
                              s.head_dim, pos, std::max(piece.seq->prompt_end, piece.kv_len));
  }
  pass.in.n = n;
  pass.in.x = x_decode_.data();
  pass.in.q = q_target_.data();
}

}  // namespace kvasir
