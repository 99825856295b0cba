// The layers of one step; see step_loop.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_loop.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/model/layers/turn_rows.h"
#include "core/runtime/step/finite.h"
#include "core/runtime/step/recompute.h"

namespace kvasir {
namespace {

constexpr const char* kWhyNotFinite = "weights of the model are NaN or infinity";

void evict_pieces(StrategyRun& run, const std::vector<Piece>& pieces) {
  std::vector<Piece> read, ended, decoded;
  for (const Piece& piece : pieces) {
    if (piece.has_failed()) continue;
    if (piece.decodes()) decoded.push_back(piece);
    if (piece.prefills()) read.push_back(piece);
  }
  guard_pieces(read, [&] { run.evict.evict(read, KVASIR_PLAN_AT_CHUNK_END); });
  for (const Piece& piece : read)
    if (piece.flags & KVASIR_STEP_LAST_PIECE && !piece.has_failed()) ended.push_back(piece);
  guard_pieces(ended, [&] { run.evict.evict(ended, KVASIR_PLAN_AT_PROMPT_END); });
  guard_pieces(decoded, [&] { run.evict.evict(decoded, KVASIR_PLAN_AT_STEP_END); });
}

}  // namespace

StepLoop::StepLoop(const Model& model, uint32_t max_tokens)
    : model_(model), b_(model, max_tokens) {}

void StepLoop::hidden(std::span<const uint32_t> queries, std::vector<float>& to) {
  for (const uint32_t query : queries)
    if (!std::binary_search(b_.wanted.begin(), b_.wanted.end(), query))
      throw Error(ErrorKind::kInternal,
                  "the last hidden state of query " + std::to_string(query) + " was not wanted");
  for (size_t i = 0, n = 0; i < queries.size(); i += n) {
    for (n = 1; i + n < queries.size() && queries[i + n] == queries[i] + n;) ++n;
    timer_.in_model([&] { model_.read_hidden(b_.h.data(), queries[i], static_cast<uint32_t>(n)); });
    const float* rows = b_.h.data() + queries[i] * b_.d_model;
    to.insert(to.end(), rows, rows + n * b_.d_model);
  }
}

std::span<const float> StepLoop::logits(const float* hidden, uint32_t n) {
  const std::span<float> out(b_.logits.data(), uint64_t{n} * model_.shape().vocab_size);
  timer_.in_model([&] { model_.logits(hidden, n, out.data()); });
  if (!all_finite(out.data(), out.size()))
    throw input_error(
        "the logits are not finite, though all hidden states are: output weights of the model are "
        "NaN or infinity");
  return out;
}

void StepLoop::begin(const std::vector<Lane>& lanes, uint32_t n) {
  timer_.begin(lanes.size());
  b_.n = n;
  b_.wanted.clear();
  for (const Lane& lane : lanes) {
    for (const Piece& piece : lane.pieces) {
      const auto at = b_.positions.begin() + piece.q_begin;
      std::iota(at, at + piece.n_q, piece.first_pos());
    }
    for (const Lane::Redo& redo : lane.redone)
      std::copy(redo.positions.begin(), redo.positions.end(),
                b_.positions.begin() + redo.piece.q_begin);
  }
}

void StepLoop::run(std::vector<Lane>& lanes, std::span<const int32_t> tokens,
                   std::vector<uint32_t> wanted) {
  begin(lanes, static_cast<uint32_t>(tokens.size()));
  b_.wanted = std::move(wanted);
  hidden_is_unchecked_ = false;  // of a step that was given up
  begin_placing(lanes);
  load_ahead(lanes, 0);
  timer_.in_model([&] { model_.embed(tokens, b_.h.data()); });
  for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer) run_layer(layer, lanes);
}

void StepLoop::run_given(std::vector<Lane>& lanes, uint32_t n, const GivenProjections& given,
                         std::span<const int32_t> turn) {
  begin(lanes, n);
  b_.on_device.reset();
  std::fill_n(b_.x.begin(), uint64_t{n} * b_.d_model, 0.0f);
  for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer) {
    timer_.in_model([&] {
      given(layer, b_.positions[0], n, b_.q.data(), b_.k.data(), b_.v.data());
      if (turn.empty())
        turn_lanes(layer, lanes);
      else
        for (const Lane& lane : lanes) turn_given(layer, lane, turn);
    });
    check_projections(layer, lanes);
    for (Lane& lane : lanes) lane_layer_.run(lane, layer);
  }
}

void StepLoop::begin_placing(std::vector<Lane>& lanes) const {
  const ModelShape& s = model_.shape();
  for (Lane& lane : lanes)
    for (Lane::Redo& redo : lane.redone) {
      if (!redo.placing) continue;
      const bool is_rotated = lane.run.geometry().k_state == KVASIR_K_ROTATED;
      const uint32_t n = redo.piece.kv_len - redo.first_position;
      const uint64_t length = std::max(redo.piece.seq->prompt_end, redo.piece.kv_len);
      redo.placed = std::make_unique<PlacedLayers>(
          *redo.placing, n, s.n_layers, b_.k_width, b_.v_width,
          [this, is_rotated, n, length, turn = redo.placing->turn](uint32_t layer, float* k) {
            const ModelShape& shape = model_.shape();
            if (is_rotated)
              model_.rope(layer).shift(k, n, shape.n_kv_heads, shape.head_dim, turn, length);
          });
    }
}

void StepLoop::load_ahead(std::vector<Lane>& lanes, uint32_t layer) {
  for (Lane& lane : lanes) {
    const auto& formats = lane.run.store->formats();
    const bool on_host = std::all_of(formats.begin(), formats.end(), [](const auto& format) {
      return is_host_memory(format.mem_kind);
    });
    for (Lane::Redo& redo : lane.redone)
      if (redo.placed && on_host) redo.placed->start(layer);
  }
}

// Before anything is asked of a storage, its counters included.
void StepLoop::wait_for_placed(Lane& lane, uint32_t layer) {
  for (Lane::Redo& redo : lane.redone)
    if (redo.placed) guard_piece(redo.piece, [&] { redo.placed->wait(layer); });
  lane.drop_failed();
}

template <class Fn>
void StepLoop::each_piece(Lane& lane, const Fn& fn) const {
  for (const Piece& piece : lane.pieces) guard_piece(piece, [&] { fn(piece); });
  for (const Lane::Redo& redo : lane.redone) guard_piece(redo.piece, [&] { fn(redo.piece); });
  lane.drop_failed();
}

void StepLoop::run_layer(uint32_t layer, std::vector<Lane>& lanes) {
  timer_.in_model([&] { model_.attn_norm(layer, b_.h.data(), b_.n, b_.x.data()); });
  if (std::any_of(lanes.begin(), lanes.end(),
                  [&](const Lane& lane) { return lane.run.select.reads_input(layer); }))
    timer_.in_model([&] { model_.read_input(b_.x.data(), 0, b_.n); });
  for (Lane& lane : lanes) {
    if (lane.pieces.empty()) continue;  // and what is placed may be on its way
    timer_.in_lane(lane, [&] { guard_pieces(lane.pieces, [&] { speculate(lane, layer); }); });
  }
  timer_.in_model([&] { project(layer, lanes); });
  if (std::exchange(hidden_is_unchecked_, false)) check_hidden(layer - 1, lanes);
  check_projections(layer, lanes);
  for (Lane& lane : lanes) {
    wait_for_placed(lane, layer);
    lane_layer_.run(lane, layer);
  }
  load_ahead(lanes, layer + 1);
  finish_layer(layer, lanes);
  hidden_is_unchecked_ =
      b_.on_device && layer + 1 < model_.shape().n_layers && can_check_late(layer + 1, lanes);
  if (!hidden_is_unchecked_) check_hidden(layer, lanes);
}

bool StepLoop::can_check_late(uint32_t layer, const std::vector<Lane>& lanes) {
  return std::all_of(lanes.begin(), lanes.end(), [&](const Lane& lane) {
    return !lane.run.select.reads_input(layer) &&
           lane.run.select.speculation_target(decoding(lane, layer)) == 0;
  });
}

void StepLoop::finish_layer(uint32_t layer, std::vector<Lane>& lanes) {
  for (Lane& lane : lanes) {
    if (!lane.run.store->takes_ahead()) continue;
    timer_.in_lane(lane, [&] {
      guard_pieces(lane.pieces, [&] { lane.run.select.read_dense_ahead(layer, lane.pieces); });
    });
  }
  if (b_.computes_what_is_wanted(layer) && b_.wanted.size() < b_.n)
    return timer_.in_model([&] { finish_wanted(layer); });
  std::vector<std::pair<Lane*, Pass>> foreseen;
  for (Lane& lane : lanes) {
    if (!lane.run.select.foresees(layer)) continue;
    Pass pass = decoding(lane, layer);
    if (lane.run.select.foresees(pass)) foreseen.emplace_back(&lane, std::move(pass));
  }
  if (foreseen.empty())
    return timer_.in_model(
        [&] { model_.finish_layer(layer, b_.attention_rows().o, b_.n, b_.h.data()); });
  timer_.in_model([&] { model_.attn_output(layer, b_.attention_rows().o, b_.n, b_.h.data()); });
  for (auto& [lane, pass] : foreseen) foresee(*lane, pass);
  timer_.in_model([&] { model_.ffn(layer, b_.h.data(), b_.n); });
}

void StepLoop::finish_wanted(uint32_t layer) {
  const auto n = static_cast<uint32_t>(b_.wanted.size());
  if (n == 0) return;
  const uint64_t o_width = b_.o_width;
  o_wanted_.resize(n * o_width);
  h_wanted_.resize(n * b_.d_model);
  for (uint32_t i = 0; i < n; ++i) {
    std::copy_n(b_.o.data() + b_.wanted[i] * o_width, o_width, o_wanted_.data() + i * o_width);
    std::copy_n(b_.h.data() + b_.wanted[i] * b_.d_model, b_.d_model,
                h_wanted_.data() + i * b_.d_model);
  }
  model_.finish_layer(layer, o_wanted_.data(), n, h_wanted_.data());
  for (uint32_t i = 0; i < n; ++i)
    std::copy_n(h_wanted_.data() + i * b_.d_model, b_.d_model,
                b_.h.data() + b_.wanted[i] * b_.d_model);
}

// Numbers are checked in the layer where they stop being finite: whatever reads them later would be
// wrong in silence. With what goes into a backend checked, what comes out of it is its own.
// What a device knows to be finite need not be read.
void StepLoop::check_projections(uint32_t layer, std::vector<Lane>& lanes) {
  if (b_.on_device) {
    if (b_.on_device->is_finite) return;
    timer_.in_model([&] { model_.read_projected(); });
  }
  for (Lane& lane : lanes)
    each_piece(lane, [&](const Piece& piece) {
      check_finite(layer, piece, "query", b_.q, b_.q_width);
      check_finite(layer, piece, "key", b_.k, b_.k_width);
      check_finite(layer, piece, "value", b_.v, b_.v_width);
    });
}

void StepLoop::check_hidden(uint32_t layer, std::vector<Lane>& lanes) {
  bool is_finite = false;
  timer_.in_model([&] {
    is_finite = model_.hidden_is_finite().value_or(false);
    if (!is_finite) model_.read_hidden(b_.h.data(), 0, b_.n);
  });
  if (is_finite) return;
  for (Lane& lane : lanes)
    each_piece(lane, [&](const Piece& piece) {
      check_finite(layer, piece, "hidden state", b_.h, b_.d_model);
    });
}

void StepLoop::check_finite(uint32_t layer, const Piece& piece, const char* what,
                            const std::vector<float>& values, uint64_t width) const {
  for (uint32_t q = piece.q_begin; q < piece.q_begin + piece.n_q; ++q) {
    if (all_finite(values.data() + q * width, width)) continue;
    throw input_error("layer " + std::to_string(layer) + ": the " + what + " at position " +
                      std::to_string(b_.positions[q]) + " is not finite: " + kWhyNotFinite);
  }
}

// Positions are those of the tokens; the length that dynamic NTK scales with is the prompt's while
// it is read, so that the pieces it comes in do not change the keys.
std::vector<Model::Turn> StepLoop::turns_of(const std::vector<Lane>& lanes) const {
  std::vector<Model::Turn> turns;
  for (const Lane& lane : lanes) {
    const bool turns_k = lane.run.geometry().k_state == KVASIR_K_ROTATED;
    const auto add = [&](const Piece& piece, uint32_t first, uint32_t n, uint32_t kv_len) {
      const uint32_t row = piece.q_begin + first;
      turns.push_back(
          {row, {b_.positions.data() + row, n}, std::max(piece.seq->prompt_end, kv_len), turns_k});
    };
    for (const Piece& piece : lane.pieces) {
      if (!piece.drafts) add(piece, 0, piece.n_q, piece.kv_len);
      for (uint32_t t = 0; piece.drafts && t < piece.n_q; ++t)  // as if each had its own step
        add(piece, t, 1, piece.first_pos() + t + 1);
    }
    for (const Lane::Redo& redo : lane.redone)
      add(redo.piece, 0, redo.piece.n_q, redo.piece.kv_len);
  }
  return turns;
}

// The queries once more, all at the position from which selected keys seem to be seen.
void StepLoop::rope_constant(uint32_t layer, const Lane& lane) {
  const uint32_t q_heads = model_.shape().n_q_heads, dim = model_.shape().head_dim;
  b_.q_constant.resize(b_.q.size());
  for (const Piece& piece : lane.pieces) {
    const uint64_t at = piece.q_begin * b_.q_width;
    std::copy_n(b_.q.data() + at, piece.n_q * b_.q_width, b_.q_constant.data() + at);
    const std::vector<uint32_t> pos(piece.n_q, lane.run.pipeline.selectors[0]->limits().pos_const);
    model_.rope(layer).apply(b_.q_constant.data() + at, piece.n_q, q_heads, dim, pos,
                             lane.run.geometry().max_context);
  }
}

// Who attends with queries at a constant position, too, needs them before they are turned.
void StepLoop::project(uint32_t layer, std::vector<Lane>& lanes) {
  const bool is_turned_twice = std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
    return lane.run.binding->constant_positions;
  });
  b_.on_device.reset();
  if (is_turned_twice) {
    model_.project_qkv(layer, b_.x.data(), b_.n, b_.q.data(), b_.k.data(), b_.v.data());
    turn_lanes(layer, lanes);
    return;
  }
  model_.project_turned(layer, b_.x.data(), b_.n, turns_of(lanes), b_.q.data(), b_.k.data(),
                        b_.v.data());
  if (stays_on_device(lanes)) b_.on_device = model_.projected_on_device();
  if (!b_.on_device) model_.read_projected();
}

// Tokens that are computed again may become fewer on the way, which the host sees to.
bool StepLoop::stays_on_device(const std::vector<Lane>& lanes) {
  return std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
    return lane.run.works_on_models_device && lane.redone.empty() &&
           std::all_of(lane.followers.begin(), lane.followers.end(), [](const auto& follower) {
             return follower.lane->run.works_on_models_device;
           });
  });
}

void StepLoop::turn_lanes(uint32_t layer, const std::vector<Lane>& lanes) {
  for (const Lane& lane : lanes)
    if (lane.run.binding->constant_positions) rope_constant(layer, lane);
  turn_rows(model_, layer, turns_of(lanes), b_.q.data(), b_.k.data());
}

// Keys that were rotated for other positions. Queries come with them as they are to be.
void StepLoop::turn_given(uint32_t layer, const Lane& lane, std::span<const int32_t> turn) {
  if (lane.run.binding->constant_positions) b_.q_constant = b_.q;
  if (lane.run.geometry().k_state != KVASIR_K_ROTATED) return;
  const ModelShape& s = model_.shape();
  for (const Piece& piece : lane.pieces)
    model_.rope(layer).shift(b_.k.data() + piece.q_begin * b_.k_width, piece.n_q, s.n_kv_heads,
                             s.head_dim, turn, std::max(piece.seq->prompt_end, piece.kv_len));
}

void StepLoop::fork_open_blocks(Lane::Followers& f) const {
  for (size_t i = 0; i < f.pieces.size(); ++i)
    guard_piece(f.pieces[i], [&] {
      for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer)
        f.lane->run.store->fork(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer], layer);
    });
}

void StepLoop::evict(std::vector<Lane>& lanes) {
  for (Lane& lane : lanes) {
    for (Lane::Followers& f : lane.followers)
      timer_.in_lane(*f.lane, [&] {
        fork_open_blocks(f);
        evict_pieces(f.lane->run, f.pieces);
      });
    timer_.in_lane(lane, [&] { evict_pieces(lane.run, lane.pieces); });
    timer_.in_lane(lane, [&] {
      for (const Lane::Redo& redo : lane.redone)
        guard_piece(redo.piece, [&] { feed_again(lane, redo); });
    });
    lane.drop_failed();
  }
}

}  // namespace kvasir
