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
  std::erase_if(lane.redone, [](const Lane::Redo& redo) { return redo.row.seq->fault != nullptr; });
  std::erase_if(lane.rows, [](const BatchRow& row) { return row.seq->fault != nullptr; });
  for (Lane::Followers& f : lane.followers)
    for (size_t i = f.rows.size(); i-- > 0;) {
      if (f.leaders[i]->fault) f.rows[i].seq->fail(f.leaders[i]->fault);
      if (!f.rows[i].seq->fault) continue;
      f.rows.erase(f.rows.begin() + static_cast<ptrdiff_t>(i));
      f.leaders.erase(f.leaders.begin() + static_cast<ptrdiff_t>(i));
    }
}

// What no stage has pinned to one row ends them all.
template <class Fn>
void guard_rows(const std::vector<BatchRow>& rows, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception&) {
    for (const BatchRow& row : rows) row.seq->fail(std::current_exception());
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
    for (const BatchRow& row : lane.rows)
      std::iota(positions_.begin() + row.q_begin, positions_.begin() + row.q_begin + row.n_q,
                row.first_pos());
  for (const Lane& lane : lanes)
    for (const Lane::Redo& redo : lane.redone)
      std::copy(redo.positions.begin(), redo.positions.end(),
                positions_.begin() + redo.row.q_begin);
  in_model([&] { model_.embed(tokens, h_.data()); });
  for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer) run_layer(layer, lanes);
}

void StepLoop::run_layer(uint32_t layer, std::vector<Lane>& lanes) {
  in_model([&] { model_.attn_norm(layer, h_.data(), n_, x_.data()); });
  for (Lane& lane : lanes)
    in_lane(lane, [&] { guard_rows(lane.rows, [&] { speculate(lane, layer); }); });
  in_model([&] { project(layer, lanes); });
  for (Lane& lane : lanes) run_lane(lane, layer);
  in_model([&] {
    model_.attn_output(layer, o_.data(), n_, h_.data());
    model_.ffn(layer, h_.data(), n_);
  });
}

// Positions are those of the tokens; the length that dynamic NTK scales with is the prompt's while
// it is read, so that the pieces it comes in do not change the keys.
void StepLoop::rope(const std::vector<BatchRow>& rows, float* values, uint32_t heads) const {
  const uint32_t dim = model_.shape().head_dim;
  const auto apply = [&](const BatchRow& row, uint32_t first, uint32_t n, uint32_t kv_len) {
    model_.rope().apply(values + uint64_t{row.q_begin + first} * heads * dim, n, heads, dim,
                        {positions_.data() + row.q_begin + first, n},
                        std::max(row.seq->prompt_end, kv_len));
  };
  for (const BatchRow& row : rows) {
    if (!row.drafts) apply(row, 0, row.n_q, row.kv_len);
    for (uint32_t t = 0; row.drafts && t < row.n_q; ++t)  // as if each had its own step
      apply(row, t, 1, row.first_pos() + t + 1);
  }
}

void StepLoop::project(uint32_t layer, std::vector<Lane>& lanes) {
  const uint32_t q_heads = model_.shape().n_q_heads, dim = model_.shape().head_dim;
  model_.project_qkv(layer, x_.data(), n_, q_.data(), k_.data(), v_.data());
  for (const Lane& lane : lanes) {
    const bool constant = lane.run.binding->constant_positions;
    if (constant) q_constant_.resize(q_.size());
    for (const BatchRow& row : lane.rows) {
      if (!constant) break;
      const uint64_t at = uint64_t{row.q_begin} * q_heads * dim;
      std::copy_n(q_.data() + at, uint64_t{row.n_q} * q_heads * dim, q_constant_.data() + at);
      const std::vector<uint32_t> pos(row.n_q, lane.run.pipeline.selectors[0]->limits().pos_const);
      model_.rope().apply(q_constant_.data() + at, row.n_q, q_heads, dim, pos,
                          lane.run.geometry().max_context);
    }
    rope(lane.rows, q_.data(), q_heads);
    std::vector<BatchRow> redone;
    for (const Lane::Redo& redo : lane.redone) redone.push_back(redo.row);
    rope(redone, q_.data(), q_heads);
    if (lane.run.geometry().k_state != KVASIR_K_ROTATED) continue;
    rope(lane.rows, k_.data(), model_.shape().n_kv_heads);
    rope(redone, k_.data(), model_.shape().n_kv_heads);
  }
}

// The query of a later layer from this layer's input, for sequences that decode.
void StepLoop::speculate(Lane& lane, uint32_t layer) {
  const ModelShape& s = model_.shape();
  std::vector<BatchRow> rows;
  for (const BatchRow& row : lane.rows)
    if (row.decodes()) rows.push_back(row);
  const uint32_t target = lane.run.select.speculation_target(layer, rows);
  if (target == 0) return;
  const auto n = static_cast<uint32_t>(rows.size());
  x_decode_.resize(uint64_t{n} * s.d_model);
  q_target_.resize(uint64_t{n} * s.n_q_heads * s.head_dim);
  in_model([&] {
    for (uint32_t i = 0; i < n; ++i) {
      std::copy_n(x_.data() + uint64_t{rows[i].q_begin} * s.d_model, s.d_model,
                  x_decode_.data() + uint64_t{i} * s.d_model);
      rows[i].q_begin = i;
    }
    model_.project_qkv(target, x_decode_.data(), n, q_target_.data(), nullptr, nullptr);
    for (const BatchRow& row : rows) {
      const uint32_t pos[] = {row.first_pos()};
      model_.rope().apply(q_target_.data() + uint64_t{row.q_begin} * s.n_q_heads * s.head_dim, 1,
                          s.n_q_heads, s.head_dim, pos, std::max(row.seq->prompt_end, row.kv_len));
    }
  });
  lane.run.select.speculate(layer, target, rows, x_decode_.data(), q_target_.data(), n);
}

// Tokens to be verified go one after another, each with a selection of its own, as if each had a
// step: all sequences that have a first token, then all that have a second.
void StepLoop::run_lane(Lane& lane, uint32_t layer) {
  uint32_t n_rounds = 1;
  for (const BatchRow& row : lane.rows)
    if (row.drafts) n_rounds = std::max(n_rounds, row.n_q);
  run_first_round(lane, layer);
  for (uint32_t round = 1; round < n_rounds; ++round)
    in_lane(lane, [&] { run_round(lane, layer, round); });
  in_lane(lane, [&] {
    for (Lane::Redo& of : lane.redone) guard_row(of.row, [&] { redo(lane, of, layer); });
    drop_failed(lane);
    for (const BatchRow& row : lane.rows)
      guard_row(row, [&] { lane.run.state.to_context(layer, row); });
    for (const BatchRow& row : lane.rows) lane.run.release_step(row.seq->layers[layer]);
  });
}

namespace {

// What the rows do in a round: their n-th token, where they have drafts, or all they have.
std::vector<BatchRow> rows_of_round(const Lane& lane, uint32_t round) {
  std::vector<BatchRow> rows;
  for (BatchRow row : lane.rows) {
    if (!row.drafts && round > 0) continue;
    if (row.drafts) {
      if (round >= row.n_q) continue;
      row.kv_len = row.first_pos() + round + 1;
      row.q_begin += round;
      row.n_q = 1;
    }
    rows.push_back(row);
  }
  return rows;
}

// For the life of this object sequences with drafts stand where they would after `round` steps.
class AtRound {
 public:
  AtRound(const Lane& lane, uint32_t layer, uint32_t round) : layer_(layer), round_(round) {
    const uint32_t leader = lane.run.context.group_leader[layer];
    for (const BatchRow& row : lane.rows) {
      if (!row.drafts || round >= row.n_q) continue;
      row.seq->decode_index += round;
      const LayerState& led = row.seq->layers[leader];
      if (leader != layer) row.seq->layers[leader].selection = led.drafted[round];
      rows_.push_back(row.seq);
    }
  }
  ~AtRound() {
    for (Sequence* seq : rows_) {
      seq->decode_index -= round_;
      seq->layers[layer_].drafted.push_back(seq->layers[layer_].selection);
    }
  }
  AtRound(const AtRound&) = delete;

 private:
  uint32_t layer_, round_;
  std::vector<Sequence*> rows_;
};

}  // namespace

void StepLoop::run_round(Lane& lane, uint32_t layer, uint32_t round) {
  const AtRound scope(lane, layer, round);
  std::vector<BatchRow> rows = rows_of_round(lane, round);
  append(lane, layer, rows);
  guard_rows(rows, [&] { attend(lane, layer, rows); });
  drop_failed(lane);
}

void StepLoop::run_first_round(Lane& lane, uint32_t layer) {
  const AtRound scope(lane, layer, 0);
  std::vector<BatchRow> rows = rows_of_round(lane, 0);
  in_lane(lane, [&] { append(lane, layer, rows); });
  drop_failed(lane);
  for (Lane::Followers& f : lane.followers)
    in_lane(*f.lane, [&] {
      guard_rows(f.rows, [&] {
        for (size_t i = 0; i < f.rows.size(); ++i)
          f.lane->run.store->share(f.leaders[i]->layers[layer], f.rows[i].seq->layers[layer]);
        f.lane->run.state.appended(layer, f.rows);
      });
    });
  in_lane(lane, [&] { guard_rows(rows, [&] { attend(lane, layer, rows); }); });
  drop_failed(lane);
  for (Lane::Followers& f : lane.followers)
    in_lane(*f.lane, [&] { guard_rows(f.rows, [&] { follow(lane, f, layer); }); });
  in_lane(lane, [&] {
    guard_rows(lane.rows, [&] { lane.run.state.prompt_end(layer, lane.rows); });
    drop_failed(lane);
  });
}

void StepLoop::append(Lane& lane, uint32_t layer, std::vector<BatchRow>& rows) {
  const ModelShape& s = model_.shape();
  for (const BatchRow& row : rows)
    guard_row(row, [&] {
      lane.run.store->append(row.seq->layers[layer], layer, row.first_pos(),
                             k_.data() + uint64_t{row.q_begin} * s.n_kv_heads * s.head_dim,
                             v_.data() + uint64_t{row.q_begin} * s.n_kv_heads * s.v_head_dim,
                             row.n_q);
    });
  rows = living(rows);
  if (rows.empty()) return;
  guard_rows(rows, [&] { lane.run.state.appended(layer, rows); });
  rows = living(rows);
}

void StepLoop::attend(Lane& lane, uint32_t layer, std::vector<BatchRow>& rows) {
  lane.run.state.seal(layer, rows);
  rows = living(rows);
  for (const BatchRow& row : rows)
    if (row.prefills()) lane.run.state.prefill_queries(layer, row, q_.data(), n_);
  rows = living(rows);
  std::vector<BatchRow> together, sliced;
  const bool slices = lane.run.select.selects_in_prefill();
  for (const BatchRow& row : rows) (slices && row.prefills() ? sliced : together).push_back(row);
  if (!together.empty()) attend_rows(lane, layer, together);
  for (const BatchRow& row : together)  // followers find their row by its place
    for (BatchRow& own : lane.rows)
      if (own.seq == row.seq) own.place = row.place;
  for (const BatchRow& row : sliced) attend_slices(lane, layer, row);
}

void StepLoop::redo(Lane& lane, Lane::Redo& redo, uint32_t layer) {
  static const LayerSelection dense = [] {
    LayerSelection all;
    all.valid = all.dense = true;
    return all;
  }();
  if (redo.narrow && *redo.narrow) narrow(lane, redo, layer);
  const ModelShape& s = model_.shape();
  LayerState& state = redo.row.seq->layers[layer];
  lane.run.store->rewrite(state, layer, redo.positions,
                          k_.data() + uint64_t{redo.row.q_begin} * s.n_kv_heads * s.head_dim,
                          v_.data() + uint64_t{redo.row.q_begin} * s.n_kv_heads * s.v_head_dim);
  std::vector<BatchRow> rows{redo.row};
  const AttendStage::Queries queries{q_.data(), nullptr, n_, positions_.data()};
  lane.run.attend.attend(layer, rows, {&dense}, queries, o_.data());
  lane.run.release_step(state);
}

// The step has no other item: rows that are left move to the front.
void StepLoop::narrow(Lane& lane, Lane::Redo& redo, uint32_t layer) {
  const ModelShape& s = model_.shape();
  const size_t k_width = size_t{s.n_kv_heads} * s.head_dim,
               v_width = size_t{s.n_kv_heads} * s.v_head_dim;
  std::vector<float> k(redo.positions.size() * k_width), v(redo.positions.size() * v_width);
  lane.run.store->read_rows(redo.row.seq->layers[layer], redo.positions, k.data(), v.data());
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
  redo.row.n_q = n_ = static_cast<uint32_t>(n);
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

void StepLoop::attend_rows(Lane& lane, uint32_t layer, std::vector<BatchRow>& rows) {
  StrategyRun& run = lane.run;
  const auto selections = run.select.select(layer, rows, inputs_of(lane));
  run.attend.attend(layer, rows, selections, queries_of(lane), o_.data());
  run.state.observe(layer, rows, run.attend);
  run.state.left_window(layer, living(rows));
}

void StepLoop::attend_slices(Lane& lane, uint32_t layer, const BatchRow& row) {
  const uint32_t slice = lane.run.slice_tokens ? lane.run.slice_tokens : row.n_q;
  for (uint32_t at = 0; at < row.n_q && !row.seq->fault; at += slice) {
    std::vector<BatchRow> part{row};
    part[0].q_begin += at;
    part[0].n_q = std::min(slice, row.n_q - at);
    part[0].kv_len = row.first_pos() + at + part[0].n_q;
    guard_rows(part, [&] {
      if (lane.run.query_block || lane.run.dense_last_queries)
        attend_slice(lane, layer, part[0]);
      else
        attend_rows(lane, layer, part);
    });
  }
}

// A list per query block, and one row for the queries that end the prompt and attend to everything,
// in one call of the backend.
void StepLoop::attend_slice(Lane& lane, uint32_t layer, const BatchRow& row) {
  StrategyRun& run = lane.run;
  const uint32_t end = row.seq->prompt_end;
  const uint32_t dense_from = end - std::min(run.dense_last_queries, end);
  BatchRow chosen = row, dense = row;
  chosen.kv_len = std::clamp(dense_from, row.first_pos(), row.kv_len);
  chosen.n_q = chosen.kv_len - row.first_pos();
  dense.n_q -= chosen.n_q;
  dense.q_begin += chosen.n_q;
  SelectStage::Lists lists =
      run.select.select_lists(layer, chosen, inputs_of(lane), run.query_block);
  if (dense.n_q) {
    lists.rows.push_back(dense);
    lists.selections.emplace_back();
    lists.selections.back().valid = lists.selections.back().dense = true;
  }
  std::vector<const LayerSelection*> selections;
  for (const LayerSelection& selection : lists.selections) selections.push_back(&selection);
  BatchRow whole = row;
  whole.place = 0;
  whole.n_places = static_cast<uint32_t>(lists.rows.size());
  run.attend.attend(layer, lists.rows, selections, queries_of(lane), o_.data());
  run.state.observe(layer, living({whole}), run.attend);
  run.state.left_window(layer, living({whole}));
}

void StepLoop::follow(const Lane& lane, Lane::Followers& f, uint32_t layer) {
  StrategyRun& run = f.lane->run;
  for (size_t i = 0; i < f.rows.size(); ++i) {
    run.store->share(f.leaders[i]->layers[layer], f.rows[i].seq->layers[layer]);
    for (const BatchRow& row : lane.rows)
      if (row.seq == f.leaders[i]) f.rows[i].place = row.place;
    run.state.prefill_queries(layer, f.rows[i], q_.data(), n_);
  }
  run.attend.adopt(lane.run.attend);
  run.state.observe(layer, f.rows, run.attend);
  run.state.left_window(layer, living(f.rows));
  run.state.prompt_end(layer, living(f.rows));
  for (const BatchRow& row : f.rows) run.release_step(row.seq->layers[layer]);
}

namespace {

void evict_rows(StrategyRun& run, const std::vector<BatchRow>& rows) {
  std::vector<BatchRow> pieces, ended, decoded;
  for (const BatchRow& row : rows) {
    if (row.decodes()) decoded.push_back(row);
    if (row.prefills()) pieces.push_back(row);
    if (row.flags & KVASIR_STEP_LAST_PIECE) ended.push_back(row);
  }
  guard_rows(pieces, [&] { run.state.evict(pieces, KVASIR_PLAN_AT_CHUNK_END); });
  guard_rows(ended, [&] { run.state.evict(living(ended), KVASIR_PLAN_AT_PROMPT_END); });
  guard_rows(decoded, [&] { run.state.evict(decoded, KVASIR_PLAN_AT_STEP_END); });
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
        for (size_t i = 0; i < f.rows.size(); ++i)
          guard_row(f.rows[i], [&] {
            for (uint32_t layer = 0; layer < model_.shape().n_layers; ++layer)
              f.lane->run.store->fork(f.leaders[i]->layers[layer], f.rows[i].seq->layers[layer],
                                      layer);
          });
        evict_rows(f.lane->run, living(f.rows));
      });
    in_lane(lane, [&] { evict_rows(lane.run, lane.rows); });
    in_lane(lane, [&] {
      for (const Lane::Redo& redo : lane.redone)
        guard_row(redo.row, [&] { feed_again(lane.run, *redo.row.seq, redo.first_position); });
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
