// Attention over selections; see attend_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/attend_stage.h"

#include <algorithm>
#include <cstddef>
#include <exception>

#include "core/plugin/host.h"
#include "core/runtime/attend/attended.h"
#include "core/runtime/attend/part_builder.h"
#include "core/runtime/step/check_clock.h"
#include "core/runtime/step/finite.h"
#include "kernels/attention_state.h"

namespace kvasir {

namespace {

// The host's rows for a view of the device's.
kvasir_view host_like(kvasir_view there, const std::vector<float>& here) {
  there.data = const_cast<float*>(here.data());  // NOLINT: inputs and outputs have one type
  there.mem_kind = KVASIR_MEM_HOST;
  there.device = 0;
  return there;
}

}  // namespace

AttendStage::AttendStage(const RunContext& context) : c_(context), rotation_(context) {
  sides_.emplace_back(c_, *c_.pipeline.attention, c_.store.bridge(), false);
  if (!c_.pipeline.is_hybrid()) return;
  sides_.emplace_back(c_, *c_.pipeline.window_attention, *c_.window_bridge, true);
  if (c_.pipeline.attention->checks()) return;  // which look at the whole process around each call
  for (BackendSide& side : sides_)
    if (side.works_on_device()) on_device_ = &side;
  if (on_device_) beside_ = std::make_unique<BesideThread>();
}

void AttendStage::attend(Pass& pass, const std::vector<const LayerSelection*>& selections,
                         const Contribution* contribution, const AttentionRows& to) {
  make_parts(pass, selections, true);
  if (c_.on_attend) report_attended(c_, pass, parts_);
  begin(pass, to);
  if (pass.pieces.empty()) return;
  for (BackendSide& side : sides_) side.hand_over_queries(parts_);
  try {
    run(pass, contribution);
  } catch (const PluginError&) {
    if (pass.pieces.size() == 1)
      pass.pieces[0].seq->fail(std::current_exception());
    else  // whose fault it is shows when each piece is attended alone
      for (const Piece& piece : pass.pieces)
        guard_piece(piece, [&] {
          const Pass alone = pass.with({piece});
          if (to.on_device) forget_there(alone);
          run(alone, contribution);
        });
    pass.drop_failed();
  }
}

void AttendStage::begin(const Pass& pass, const AttentionRows& to) {
  to_ = to;
  n_queries_ = pass.in.n;
  if (to.on_device) return;
  lse_.assign(n_queries_ * c_.geometry.n_q_heads, kernels::kEmptyLse);
  to_.lse = lse_.data();
}

bool AttendStage::attend_unread(Pass& pass, const std::vector<const LayerSelection*>& selections,
                                const AttentionRows& to, const kvasir_view& lists,
                                const std::function<bool(FiniteQuestion*)>& read) {
  Pass tried = pass;
  const auto attempt = [&](auto&& fn) {
    try {
      return fn();
    } catch (const PluginError&) {  // whose fault it is shows when the pass is attended again
      return false;
    }
  };
  begin(pass, to);
  const bool has_run = attempt([&] {
    make_parts(tried, selections, false);
    if (tried.pieces.size() != pass.pieces.size()) return false;
    sides_[0].hand_over_queries(parts_);
    start(tried, &lists);
    return true;
  });
  std::optional<FiniteQuestion> finite;
  if (has_run) finite = question_of(tried);
  const bool is_good = read(finite ? &*finite : nullptr) && has_run && attempt([&] {
                         put_lists(pass, selections);
                         accept(tried, finite && finite->answer.value_or(false));
                         return true;
                       });
  if (!is_good) {
    if (to.on_device) forget_there(pass);
    return false;
  }
  pass = std::move(tried);
  for (const Piece& piece : pass.pieces)
    count_tokens(c_, pass.layer, piece, *selections[piece.place]);
  if (c_.on_attend) report_attended(c_, pass, parts_);
  return true;
}

// The backend knows the blocks of these parts by now; those that are full do not change.
void AttendStage::put_lists(const Pass& pass,
                            const std::vector<const LayerSelection*>& selections) {
  for (Part& part : parts_) {
    for (const Part::ListThere& list : part.there) {
      const std::vector<uint32_t>& chosen = selections[part.place]->head(list.kv_head).index;
      std::copy(chosen.begin(), chosen.end(),
                part.items.begin() + static_cast<ptrdiff_t>(list.item_begin));
      const Piece& piece = pass.pieces[part.place];
      piece.seq->layers[pass.layer].told = piece.kv_len / c_.geometry.block_size;
    }
    part.there.clear();
  }
}

void AttendStage::make_parts(Pass& pass, const std::vector<const LayerSelection*>& selections,
                             bool counts) {
  parts_.clear();
  rotation_.begin(pass.layer);
  std::vector<PartBuilder> builders;
  builders.reserve(pass.pieces.size());
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    Piece& piece = pass.pieces[i];
    piece.place = i;
    builders.emplace_back(c_, pass, piece, rotation_);
    if (!piece.has_failed()) guard_piece(piece, [&] { builders[i].build(*selections[i]); });
  }
  if (c_.store.moves())
    together_or_alone(pass.pieces, builders, [&](auto some) {
      LayerNeeds needs(c_);
      for (const PartBuilder& builder : some) builder.add_needs(needs);
      c_.store.make_resident(needs.take());
    });
  for (uint32_t i = 0; i < pass.pieces.size(); ++i) {
    const Piece& piece = pass.pieces[i];
    if (piece.has_failed()) continue;
    const size_t first_part = parts_.size();
    if (!guard_piece(piece, [&] { builders[i].finish(parts_); })) {
      parts_.resize(first_part);
      continue;
    }
    if (counts) count_tokens(c_, pass.layer, piece, *selections[i]);
    if (c_.store.has_window()) count_split_bytes(c_, piece, parts_, first_part);
  }
  pass.drop_failed();
}

void AttendStage::run(const Pass& pass, const Contribution* contribution) {
  start(pass, nullptr);
  accept(pass);
  if (contribution) merge(*contribution, pass.pieces);
}

void AttendStage::start(const Pass& pass, const kvasir_view* lists) {
  if (to_.on_device)
    sides_[0].run(pass, parts_, to_, lists);
  else
    run_sides(pass, lists);
}

std::optional<FiniteQuestion> AttendStage::question_of(const Pass& pass) const {
  const std::vector<QueryRun> runs = runs_of_queries(pass.pieces);
  if (!to_.on_device || runs.size() != 1 || runs[0].end - runs[0].begin != n_queries_) return {};
  const uint64_t width = uint64_t{c_.geometry.n_q_heads} * (c_.geometry.v_dim + 1);
  return FiniteQuestion{c_.store.bridge().view(true, to_.o, {n_queries_ * width}), {}};
}

void AttendStage::accept(const Pass& pass, bool is_finite) {
  const bool in_prefill = std::all_of(pass.pieces.begin(), pass.pieces.end(),
                                      [](const Piece& piece) { return piece.prefills(); });
  if (!is_finite) {
    const CheckClock clock(c_.counters.of(in_prefill).check_nanos);
    if (to_.on_device)
      check_finite_there(pass);
    else
      for (const Piece& piece : pass.pieces) check_finite(pass, piece, to_.o, to_.lse);
  }
  for (const BackendSide& side : sides_)
    c_.counters.of(in_prefill).backend_skipped += side.keys_skipped();
}

void AttendStage::run_sides(const Pass& pass, const kvasir_view* lists) {
  const bool is_alone = sides_.size() == 1;
  const uint64_t heads = c_.geometry.n_q_heads, width = heads * c_.geometry.v_dim;
  for (const Piece& piece : pass.pieces) {
    std::fill_n(to_.o + piece.q_begin * width, piece.n_q * width,
                is_alone ? BackendSide::kUnwritten : 0.0f);
    std::fill_n(to_.lse + piece.q_begin * heads, piece.n_q * heads,
                is_alone ? BackendSide::kUnwritten : kernels::kEmptyLse);
  }
  if (is_alone) {
    sides_[0].run(pass, parts_, to_, lists);
    return;
  }
  run_both(pass);
  for (BackendSide& side : sides_) side.merge(pass, parts_, to_.o, to_.lse);
}

void AttendStage::run_both(const Pass& pass) {
  const bool are_two = sides_[0].has_parts(pass, parts_) && sides_[1].has_parts(pass, parts_);
  if (!beside_ || !are_two) {
    for (BackendSide& side : sides_) side.run_alone(pass, parts_);
    return;
  }
  BackendSide& here = on_device_ == &sides_[0] ? sides_[1] : sides_[0];
  beside_->run_both([&] { here.run_alone(pass, parts_); },
                    [&] {
                      const BesidePool scope;
                      on_device_->run_alone(pass, parts_);
                    });
}

// Each query sees itself at least: an lse of -inf is wrong, too.
void AttendStage::check_finite(const Pass& pass, const Piece& piece, const float* o,
                               const float* lse) const {
  const uint64_t heads = c_.geometry.n_q_heads, width = heads * c_.geometry.v_dim;
  for (uint64_t query = piece.q_begin; query < uint64_t{piece.q_begin} + piece.n_q; ++query) {
    if (!all_finite(lse + query * heads, heads)) sides_[0].refuse(pass, parts_, "lse", query);
    if (!all_finite(o + query * width, width)) sides_[0].refuse(pass, parts_, "output", query);
  }
}

void AttendStage::check_finite_there(const Pass& pass) {
  MemoryBridge& bridge = c_.store.bridge();
  if (const auto question = question_of(pass); question && bridge.all_finite(question->of)) return;
  const uint64_t heads = c_.geometry.n_q_heads, width = heads * c_.geometry.v_dim;
  const kvasir_view o = sides_[0].o_of(to_, n_queries_), lse = sides_[0].lse_of(to_, n_queries_);
  const auto are_finite = [&](const QueryRun& run) {
    return bridge.all_finite(elements(lse, run.begin, run.end)) &&
           bridge.all_finite(elements(o, run.begin, run.end));
  };
  const std::vector<QueryRun> runs = runs_of_queries(pass.pieces);
  if (std::all_of(runs.begin(), runs.end(), are_finite)) return;
  std::vector<float> o_here(n_queries_ * width), lse_here(n_queries_ * heads);
  for (const QueryRun& run : runs) {
    bridge.copy(host_like(o, o_here), o, run.begin, run.end);
    bridge.copy(host_like(lse, lse_here), lse, run.begin, run.end);
  }
  for (const Piece& piece : pass.pieces) check_finite(pass, piece, o_here.data(), lse_here.data());
}

void AttendStage::forget_there(const Pass& pass) {
  const auto forget = [&](const kvasir_view& there) {
    const uint64_t n = n_queries_ * static_cast<uint64_t>(there.stride[0]) / sizeof(float);
    const std::vector<float> unwritten(n, BackendSide::kUnwritten);
    for (const QueryRun& run : runs_of_queries(pass.pieces))
      c_.store.bridge().copy(there, host_like(there, unwritten), run.begin, run.end);
  };
  forget(sides_[0].o_of(to_, n_queries_));
  forget(sides_[0].lse_of(to_, n_queries_));
}

void AttendStage::merge(const Contribution& contribution, const std::vector<Piece>& pieces) {
  const uint64_t heads = c_.geometry.n_q_heads, dim = c_.geometry.v_dim;
  for (const Piece& piece : pieces)
    for (uint64_t i = piece.q_begin * heads; i < (uint64_t{piece.q_begin} + piece.n_q) * heads; ++i)
      kernels::merge_attention(to_.o + i * dim, to_.lse + i, contribution.o.data() + i * dim,
                               contribution.lse[i], dim);
}

// Parts point into the stage they come from, which keeps them until its next attend().
void AttendStage::adopt(const AttendStage& other) {
  parts_.clear();
  for (const Part& part : other.parts_) parts_.push_back(part.borrowed());
  lse_ = other.lse_;
  to_ = other.to_;
  if (!to_.on_device) to_.lse = lse_.data();
  n_queries_ = other.n_queries_;
}

std::vector<std::vector<HeadMass>> AttendStage::mass(const Pass& pass,
                                                     const std::vector<uint32_t>& from_pos,
                                                     bool window_only, bool values) {
  MassCall call(c_, pass, from_pos, window_only);
  for (const BackendSide& side : sides_)
    for (const Part& part : parts_)
      if (side.takes(part)) call.add(part);
  call.make_room();
  if (values)
    for (BackendSide& side : sides_) side.ask_mass(pass, side.lse_of(to_, n_queries_), call);
  return call.by_position();
}

}  // namespace kvasir
