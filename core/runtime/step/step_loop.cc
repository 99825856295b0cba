// The layers of one step; see step_loop.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_loop.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace kvasir {
namespace {

uint64_t now_nanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// A follower ends with the row whose prompt it reads.
void drop_failed(Lane& lane) {
  std::erase_if(lane.redone,
                [](const Lane::Redo& redo) { return redo.piece.seq->fault != nullptr; });
  std::erase_if(lane.pieces, [](const Piece& piece) { return piece.seq->fault != nullptr; });
  for (Lane::Followers& f : lane.followers)
    for (size_t i = f.pieces.size(); i-- > 0;) {
      if (f.leaders[i]->fault) f.pieces[i].seq->fail(f.leaders[i]->fault);
      if (!f.pieces[i].seq->fault) continue;
      f.pieces.erase(f.pieces.begin() + static_cast<ptrdiff_t>(i));
      f.leaders.erase(f.leaders.begin() + static_cast<ptrdiff_t>(i));
    }
}

// What no stage has pinned to one row ends them all.
template <class Fn>
void guard_pieces(const std::vector<Piece>& pieces, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception&) {
    for (const Piece& piece : pieces) piece.seq->fail(std::current_exception());
  }
}

}  // namespace

StepLoop::StepLoop(const Model& model, uint32_t max_tokens) : model_(model) {
  const ModelShape& s = model.shape();
  const uint64_t n = max_tokens;
  h_.resize(n * s.d_model);
  x_.resize(n * s.d_model);
  q_.resize(n * s.n_q_heads * s.head_dim);
  k_.resize(n * s.n_kv_heads * s.head_dim);
  v_.resize(n * s.n_kv_heads * s.v_head_dim);
  o_.resize(n * s.n_q_heads * s.v_head_dim);
  positions_.resize(n);
}

template <class Fn>
void StepLoop::in_model(Fn&& fn) {
  const uint64_t begin = now_nanos();
  fn();
  model_nanos_ += now_nanos() - begin;
}

template <class Fn>
void StepLoop::in_lane(Lane& lane, Fn&& fn) {
  const CallStats before = plugin_totals(lane.run.pipeline);
  const uint64_t begin = now_nanos(), model_before = model_nanos_;
  const uint64_t copied_before = lane.run.copied_bytes();
  fn();
  const CallStats after = plugin_totals(lane.run.pipeline);
  lane.nanos += now_nanos() - begin - (model_nanos_ - model_before);
  lane.copied_bytes += lane.run.copied_bytes() - copied_before;
  lane.plugin_calls += after.calls - before.calls;
  lane.plugin_nanos += after.nanos - before.nanos;
  if (n_lanes_ > 1) count_transfers(lane);
}

void StepLoop::count_transfers(const Lane& lane) {
  RunContext& context = lane.run.context;
  context.latest_prefilled = lane.n_decode == 0;
  if (lane.run.store->moves())
    lane.run.store->count_transfers(context.counters(context.latest_prefilled));
}

const float* StepLoop::hidden(uint32_t query) const {
  return h_.data() + uint64_t{query} * model_.shape().d_model;
}

void StepLoop::logits(const float* hidden, uint32_t n, float* out) {
  in_model([&] { model_.logits(hidden, n, out); });
}

void StepLoop::run(std::vector<Lane>& lanes, std::span<const int32_t> tokens) {
  begun_ = now_nanos();
  model_nanos_ = 0;
  n_ = static_cast<uint32_t>(tokens.size());
  n_lanes_ = lanes.size();
  for (const Lane& lane : lanes)
    for (const Piece& piece : lane.pieces)
      std::iota(positions_.begin() + piece.q_begin, positions_.begin() + piece.q_begin + piece.n_q,
                piece.first_pos());
  for (const Lane& lane : lanes)
    for (const Lane::Redo& redo : lane.redone)
      std::copy(redo.positions.begin(), redo.positions.end(),
                positions_.begin() + redo.piece.q_begin);
  in_model([&] { model_.embed(tokens, h_.data()); });
  for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer) run_layer(layer, lanes);
}

void StepLoop::run_layer(uint32_t layer, std::vector<Lane>& lanes) {
  in_model([&] { model_.attn_norm(layer, h_.data(), n_, x_.data()); });
  for (Lane& lane : lanes)
    in_lane(lane, [&] { guard_pieces(lane.pieces, [&] { speculate(lane, layer); }); });
  in_model([&] { project(layer, lanes); });
  for (Lane& lane : lanes) run_lane(lane, layer);
  in_model([&] {
    model_.attn_output(layer, o_.data(), n_, h_.data());
    model_.ffn(layer, h_.data(), n_);
  });
}

// Positions are those of the tokens; the length that dynamic NTK scales with is the prompt's while
// it is read, so that the pieces it comes in do not change the keys.
void StepLoop::rope(const std::vector<Piece>& pieces, float* values, uint32_t heads) const {
  const uint32_t dim = model_.shape().head_dim;
  const auto apply = [&](const Piece& piece, uint32_t first, uint32_t n, uint32_t kv_len) {
    model_.rope().apply(values + uint64_t{piece.q_begin + first} * heads * dim, n, heads, dim,
                        {positions_.data() + piece.q_begin + first, n},
                        std::max(piece.seq->prompt_end, kv_len));
  };
  for (const Piece& piece : pieces) {
    if (!piece.drafts) apply(piece, 0, piece.n_q, piece.kv_len);
    for (uint32_t t = 0; piece.drafts && t < piece.n_q; ++t)  // as if each had its own step
      apply(piece, t, 1, piece.first_pos() + t + 1);
  }
}

void StepLoop::project(uint32_t layer, std::vector<Lane>& lanes) {
  const uint32_t q_heads = model_.shape().n_q_heads, dim = model_.shape().head_dim;
  model_.project_qkv(layer, x_.data(), n_, q_.data(), k_.data(), v_.data());
  for (const Lane& lane : lanes) {
    const bool constant = lane.run.binding->constant_positions;
    if (constant) q_constant_.resize(q_.size());
    for (const Piece& piece : lane.pieces) {
      if (!constant) break;
      const uint64_t at = uint64_t{piece.q_begin} * q_heads * dim;
      std::copy_n(q_.data() + at, uint64_t{piece.n_q} * q_heads * dim, q_constant_.data() + at);
      const std::vector<uint32_t> pos(piece.n_q,
                                      lane.run.pipeline.selectors[0]->limits().pos_const);
      model_.rope().apply(q_constant_.data() + at, piece.n_q, q_heads, dim, pos,
                          lane.run.geometry().max_context);
    }
    rope(lane.pieces, q_.data(), q_heads);
    std::vector<Piece> redone;
    for (const Lane::Redo& redo : lane.redone) redone.push_back(redo.piece);
    rope(redone, q_.data(), q_heads);
    if (lane.run.geometry().k_state != KVASIR_K_ROTATED) continue;
    rope(lane.pieces, k_.data(), model_.shape().n_kv_heads);
    rope(redone, k_.data(), model_.shape().n_kv_heads);
  }
}

// The query of a later layer from this layer's input, for sequences that decode.
void StepLoop::speculate(Lane& lane, uint32_t layer) {
  const ModelShape& s = model_.shape();
  std::vector<Piece> pieces;
  for (const Piece& piece : lane.pieces)
    if (piece.decodes()) pieces.push_back(piece);
  const uint32_t target = lane.run.select.speculation_target(layer, pieces);
  if (target == 0) return;
  const auto n = static_cast<uint32_t>(pieces.size());
  x_decode_.resize(uint64_t{n} * s.d_model);
  q_target_.resize(uint64_t{n} * s.n_q_heads * s.head_dim);
  in_model([&] {
    for (uint32_t i = 0; i < n; ++i) {
      std::copy_n(x_.data() + uint64_t{pieces[i].q_begin} * s.d_model, s.d_model,
                  x_decode_.data() + uint64_t{i} * s.d_model);
      pieces[i].q_begin = i;
    }
    model_.project_qkv(target, x_decode_.data(), n, q_target_.data(), nullptr, nullptr);
    for (const Piece& piece : pieces) {
      const uint32_t pos[] = {piece.first_pos()};
      model_.rope().apply(q_target_.data() + uint64_t{piece.q_begin} * s.n_q_heads * s.head_dim, 1,
                          s.n_q_heads, s.head_dim, pos,
                          std::max(piece.seq->prompt_end, piece.kv_len));
    }
  });
  lane.run.select.speculate(layer, target, pieces, x_decode_.data(), q_target_.data(), n);
}

// Tokens to be verified go one after another, each with a selection of its own, as if each had a
// step: all sequences that have a first token, then all that have a second.
void StepLoop::run_lane(Lane& lane, uint32_t layer) {
  uint32_t n_rounds = 1;
  for (const Piece& piece : lane.pieces)
    if (piece.drafts) n_rounds = std::max(n_rounds, piece.n_q);
  run_first_round(lane, layer);
  for (uint32_t round = 1; round < n_rounds; ++round)
    in_lane(lane, [&] { run_round(lane, layer, round); });
  in_lane(lane, [&] {
    for (Lane::Redo& of : lane.redone) guard_piece(of.piece, [&] { redo(lane, of, layer); });
    drop_failed(lane);
    for (const Piece& piece : lane.pieces)
      guard_piece(piece, [&] { lane.run.state.to_context(layer, piece); });
    for (const Piece& piece : lane.pieces) lane.run.release_step(piece.seq->layers[layer]);
  });
}

namespace {

// What the rows do in a round: their n-th token, where they have drafts, or all they have.
std::vector<Piece> pieces_of_round(const Lane& lane, uint32_t round) {
  std::vector<Piece> pieces;
  for (Piece piece : lane.pieces) {
    if (!piece.drafts && round > 0) continue;
    if (piece.drafts) {
      if (round >= piece.n_q) continue;
      piece.kv_len = piece.first_pos() + round + 1;
      piece.q_begin += round;
      piece.n_q = 1;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

// For the life of this object sequences with drafts stand where they would after `round` steps.
class AtRound {
 public:
  AtRound(const Lane& lane, uint32_t layer, uint32_t round) : layer_(layer), round_(round) {
    const uint32_t leader = lane.run.context.group_leader[layer];
    for (const Piece& piece : lane.pieces) {
      if (!piece.drafts || round >= piece.n_q) continue;
      piece.seq->decode_index += round;
      const LayerState& led = piece.seq->layers[leader];
      if (leader != layer) piece.seq->layers[leader].selection = led.drafted[round];
      seqs_.push_back(piece.seq);
    }
  }
  ~AtRound() {
    for (Sequence* seq : seqs_) {
      seq->decode_index -= round_;
      seq->layers[layer_].drafted.push_back(seq->layers[layer_].selection);
    }
  }
  AtRound(const AtRound&) = delete;

 private:
  uint32_t layer_, round_;
  std::vector<Sequence*> seqs_;
};

}  // namespace

void StepLoop::run_round(Lane& lane, uint32_t layer, uint32_t round) {
  const AtRound scope(lane, layer, round);
  std::vector<Piece> pieces = pieces_of_round(lane, round);
  append(lane, layer, pieces);
  guard_pieces(pieces, [&] { attend(lane, layer, pieces); });
  drop_failed(lane);
}

void StepLoop::run_first_round(Lane& lane, uint32_t layer) {
  const AtRound scope(lane, layer, 0);
  std::vector<Piece> pieces = pieces_of_round(lane, 0);
  in_lane(lane, [&] { append(lane, layer, pieces); });
  drop_failed(lane);
  for (Lane::Followers& f : lane.followers)
    in_lane(*f.lane, [&] {
      guard_pieces(f.pieces, [&] {
        for (size_t i = 0; i < f.pieces.size(); ++i)
          f.lane->run.store->share(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer]);
        f.lane->run.state.appended(layer, f.pieces);
      });
    });
  in_lane(lane, [&] { guard_pieces(pieces, [&] { attend(lane, layer, pieces); }); });
  drop_failed(lane);
  for (Lane::Followers& f : lane.followers)
    in_lane(*f.lane, [&] { guard_pieces(f.pieces, [&] { follow(lane, f, layer); }); });
  in_lane(lane, [&] {
    guard_pieces(lane.pieces, [&] { lane.run.state.prompt_end(layer, lane.pieces); });
    drop_failed(lane);
  });
}

void StepLoop::append(Lane& lane, uint32_t layer, std::vector<Piece>& pieces) {
  const ModelShape& s = model_.shape();
  for (const Piece& piece : pieces)
    guard_piece(piece, [&] {
      lane.run.store->append(piece.seq->layers[layer], layer, piece.first_pos(),
                             k_.data() + uint64_t{piece.q_begin} * s.n_kv_heads * s.head_dim,
                             v_.data() + uint64_t{piece.q_begin} * s.n_kv_heads * s.v_head_dim,
                             piece.n_q);
    });
  pieces = living(pieces);
  if (pieces.empty()) return;
  guard_pieces(pieces, [&] { lane.run.state.appended(layer, pieces); });
  pieces = living(pieces);
}

void StepLoop::attend(Lane& lane, uint32_t layer, std::vector<Piece>& pieces) {
  lane.run.state.seal(layer, pieces);
  pieces = living(pieces);
  for (const Piece& piece : pieces)
    if (piece.prefills()) lane.run.state.prefill_queries(layer, piece, q_.data(), n_);
  pieces = living(pieces);
  std::vector<Piece> together, sliced;
  const bool slices = lane.run.select.selects_in_prefill();
  for (const Piece& piece : pieces)
    (slices && piece.prefills() ? sliced : together).push_back(piece);
  if (!together.empty()) attend_pieces(lane, layer, together);
  for (const Piece& piece : together)  // followers find their row by its place
    for (Piece& own : lane.pieces)
      if (own.seq == piece.seq) own.place = piece.place;
  for (const Piece& piece : sliced) attend_slices(lane, layer, piece);
}

void StepLoop::redo(Lane& lane, Lane::Redo& redo, uint32_t layer) {
  static const LayerSelection dense = [] {
    LayerSelection all;
    all.valid = all.dense = true;
    return all;
  }();
  if (redo.narrow && *redo.narrow) narrow(lane, redo, layer);
  const ModelShape& s = model_.shape();
  LayerState& state = redo.piece.seq->layers[layer];
  lane.run.store->rewrite(state, layer, redo.positions,
                          k_.data() + uint64_t{redo.piece.q_begin} * s.n_kv_heads * s.head_dim,
                          v_.data() + uint64_t{redo.piece.q_begin} * s.n_kv_heads * s.v_head_dim);
  std::vector<Piece> pieces{redo.piece};
  const AttendStage::Queries queries{q_.data(), nullptr, n_, positions_.data()};
  lane.run.attend.attend(layer, pieces, {&dense}, queries, o_.data());
  lane.run.release_step(state);
}

// The step has no other item: rows that are left move to the front.
void StepLoop::narrow(Lane& lane, Lane::Redo& redo, uint32_t layer) {
  const ModelShape& s = model_.shape();
  const size_t k_width = size_t{s.n_kv_heads} * s.head_dim,
               v_width = size_t{s.n_kv_heads} * s.v_head_dim;
  std::vector<float> k(redo.positions.size() * k_width), v(redo.positions.size() * v_width);
  lane.run.store->read_tokens(redo.piece.seq->layers[layer], redo.positions, k.data(), v.data());
  const std::vector<uint32_t> left =
      (*redo.narrow)({layer, redo.positions, k_.data(), v_.data(), k.data(), v.data()});
  size_t at = 0, n = 0;
  const auto move = [&](std::vector<float>& rows, size_t width) {
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(at * width), width,
                rows.begin() + static_cast<ptrdiff_t>(n * width));
  };
  for (const uint32_t pos : left) {
    while (at < redo.positions.size() && redo.positions[at] < pos) ++at;
    if (at == redo.positions.size() || redo.positions[at] != pos)
      throw Error(ErrorKind::kInternal,
                  "position " + std::to_string(pos) + " is not among those computed again");
    move(h_, s.d_model);
    move(q_, size_t{s.n_q_heads} * s.head_dim);
    move(k_, k_width);
    move(v_, v_width);
    redo.positions[n] = positions_[n] = pos;
    ++n, ++at;
  }
  redo.positions.resize(n);
  redo.piece.n_q = n_ = static_cast<uint32_t>(n);
}

SelectStage::Inputs StepLoop::inputs_of(const Lane& lane) const {
  return {lane.run.binding->constant_positions ? q_constant_.data() : q_.data(), x_.data(), n_};
}

// After the selection.
AttendStage::Queries StepLoop::queries_of(const Lane& lane) const {
  AttendStage::Queries out{q_.data(), nullptr, n_, positions_.data()};
  if (lane.run.binding->constant_positions) out.constant = q_constant_.data();
  if (const SelectStage::Contribution* contribution = lane.run.select.contribution()) {
    out.contributed_o = contribution->o.data();
    out.contributed_lse = contribution->lse.data();
  }
  return out;
}

void StepLoop::attend_pieces(Lane& lane, uint32_t layer, std::vector<Piece>& pieces) {
  StrategyRun& run = lane.run;
  const auto selections = run.select.select(layer, pieces, inputs_of(lane));
  run.attend.attend(layer, pieces, selections, queries_of(lane), o_.data());
  run.state.observe(layer, pieces, run.attend);
  run.state.left_window(layer, living(pieces));
}

void StepLoop::attend_slices(Lane& lane, uint32_t layer, const Piece& piece) {
  const uint32_t slice = lane.run.slice_tokens ? lane.run.slice_tokens : piece.n_q;
  for (uint32_t at = 0; at < piece.n_q && !piece.seq->fault; at += slice) {
    std::vector<Piece> part{piece};
    part[0].q_begin += at;
    part[0].n_q = std::min(slice, piece.n_q - at);
    part[0].kv_len = piece.first_pos() + at + part[0].n_q;
    guard_pieces(part, [&] {
      if (lane.run.query_block || lane.run.dense_last_queries)
        attend_slice(lane, layer, part[0]);
      else
        attend_pieces(lane, layer, part);
    });
  }
}

// A list per query block, and one row for the queries that end the prompt and attend to everything,
// in one call of the backend.
void StepLoop::attend_slice(Lane& lane, uint32_t layer, const Piece& piece) {
  StrategyRun& run = lane.run;
  const uint32_t end = piece.seq->prompt_end;
  const uint32_t dense_from = end - std::min(run.dense_last_queries, end);
  Piece chosen = piece, dense = piece;
  chosen.kv_len = std::clamp(dense_from, piece.first_pos(), piece.kv_len);
  chosen.n_q = chosen.kv_len - piece.first_pos();
  dense.n_q -= chosen.n_q;
  dense.q_begin += chosen.n_q;
  SelectStage::Lists lists =
      run.select.select_lists(layer, chosen, inputs_of(lane), run.query_block);
  if (dense.n_q) {
    lists.pieces.push_back(dense);
    lists.selections.emplace_back();
    lists.selections.back().valid = lists.selections.back().dense = true;
  }
  std::vector<const LayerSelection*> selections;
  for (const LayerSelection& selection : lists.selections) selections.push_back(&selection);
  Piece whole = piece;
  whole.place = 0;
  whole.n_places = static_cast<uint32_t>(lists.pieces.size());
  run.attend.attend(layer, lists.pieces, selections, queries_of(lane), o_.data());
  run.state.observe(layer, living({whole}), run.attend);
  run.state.left_window(layer, living({whole}));
}

void StepLoop::follow(const Lane& lane, Lane::Followers& f, uint32_t layer) {
  StrategyRun& run = f.lane->run;
  for (size_t i = 0; i < f.pieces.size(); ++i) {
    run.store->share(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer]);
    for (const Piece& piece : lane.pieces)
      if (piece.seq == f.leaders[i]) f.pieces[i].place = piece.place;
    run.state.prefill_queries(layer, f.pieces[i], q_.data(), n_);
  }
  run.attend.adopt(lane.run.attend);
  run.state.observe(layer, f.pieces, run.attend);
  run.state.left_window(layer, living(f.pieces));
  run.state.prompt_end(layer, living(f.pieces));
  for (const Piece& piece : f.pieces) run.release_step(piece.seq->layers[layer]);
}

namespace {

void evict_pieces(StrategyRun& run, const std::vector<Piece>& pieces) {
  std::vector<Piece> read, ended, decoded;
  for (const Piece& piece : pieces) {
    if (piece.decodes()) decoded.push_back(piece);
    if (piece.prefills()) read.push_back(piece);
    if (piece.flags & KVASIR_STEP_LAST_PIECE) ended.push_back(piece);
  }
  guard_pieces(read, [&] { run.state.evict(read, KVASIR_PLAN_AT_CHUNK_END); });
  guard_pieces(ended, [&] { run.state.evict(living(ended), KVASIR_PLAN_AT_PROMPT_END); });
  guard_pieces(decoded, [&] { run.state.evict(decoded, KVASIR_PLAN_AT_STEP_END); });
}

// Records of the blocks from the first changed one on are made anew.
void feed_again(StrategyRun& run, Sequence& seq, uint32_t first_position) {
  const uint32_t b = run.geometry().block_size;
  const uint32_t from = first_position / b;
  seq.content.truncate(first_position);
  seq.content.taint();
  for (LayerState& state : seq.layers) {
    for (size_t owner = 0; owner < run.context.owners.size(); ++owner)
      run.context.owners[owner].slab.truncate(state.slabs[owner], from * b);
    state.selection = {};
  }
  run.refeed(seq, from * b, from, false);
}

}  // namespace

void StepLoop::evict(std::vector<Lane>& lanes) {
  for (Lane& lane : lanes) {
    for (Lane::Followers& f : lane.followers)
      in_lane(*f.lane, [&] {
        for (size_t i = 0; i < f.pieces.size(); ++i)
          guard_piece(f.pieces[i], [&] {
            for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer)
              f.lane->run.store->fork(f.leaders[i]->layers[layer], f.pieces[i].seq->layers[layer],
                                      layer);
          });
        evict_pieces(f.lane->run, living(f.pieces));
      });
    in_lane(lane, [&] { evict_pieces(lane.run, lane.pieces); });
    in_lane(lane, [&] {
      for (const Lane::Redo& redo : lane.redone)
        guard_piece(redo.piece,
                    [&] { feed_again(lane.run, *redo.piece.seq, redo.first_position); });
    });
    drop_failed(lane);
  }
}

void StepLoop::account(std::vector<Lane>& lanes) {
  const uint64_t total = now_nanos() - begun_;
  uint64_t in_lanes = 0, n = 0;
  for (const Lane& lane : lanes) {
    in_lanes += lane.nanos;
    n += lane.n_prefill - lane.n_followed + lane.n_decode;
  }
  for (const Lane& lane : lanes) count_transfers(lane);
  const uint64_t rest = total - std::min(total, in_lanes + model_nanos_);
  for (Lane& lane : lanes) {
    const uint64_t lane_tokens = std::max(1u, lane.n_prefill + lane.n_decode);
    for (const bool prefill : {true, false}) {
      const uint64_t tokens = prefill ? lane.n_prefill : lane.n_decode;
      if (tokens == 0) continue;
      const auto of_lane = [&](uint64_t x) { return x * tokens / lane_tokens; };
      // Model time belongs to the tokens that went through it: none to those that follow.
      const uint64_t computed = prefill ? tokens - lane.n_followed : tokens;
      const auto of_step = [&](uint64_t x) { return n ? x * computed / n : 0; };
      Engagement& e = lane.run.context.counters(prefill);
      ++e.steps;
      e.layer_steps += model_.shape().n_layers;
      e.boundary_calls += of_lane(lane.plugin_calls);
      e.device_copy_bytes += of_lane(lane.copied_bytes);
      e.plugin_nanos += of_lane(lane.plugin_nanos);
      e.model_nanos += of_step(model_nanos_);
      e.core_nanos += of_lane(lane.nanos - std::min(lane.nanos, lane.plugin_nanos)) + of_step(rest);
      e.total_nanos += of_lane(lane.nanos) + of_step(model_nanos_ + rest);
    }
  }
}

}  // namespace kvasir
