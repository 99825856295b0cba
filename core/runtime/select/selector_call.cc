// Calling a selector; see selector_call.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/selector_call.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/runtime/observe/block_heat.h"
#include "core/runtime/select/contribution.h"
#include "core/runtime/select/device_lists.h"
#include "core/runtime/step/check_clock.h"
#include "core/runtime/step/guarded_call.h"
#include "core/runtime/step/step_builder.h"

namespace kvasir {
namespace {

constexpr int kAttempts = 3;  // a selector may ask for more space twice

uint64_t first_capacity(const SelectorLimits& limits, const SelectorInput& input, uint32_t heads) {
  uint64_t capacity = 0;
  for (const Candidates* candidates : input.candidates)
    capacity += heads * std::min<uint64_t>(candidates->max_count(),
                                           limits.max_units ? limits.max_units : 1024);
  // Lists of many query blocks are rarely as long as they may be.
  return capacity * std::min(input.blocks.n, 4u);
}

SelectorAnswer failed(std::string fault) {
  SelectorAnswer answer;
  answer.fault = std::move(fault);
  return answer;
}

}  // namespace

SelectorAnswer SelectorCaller::select(size_t index, const SelectorInput& input) {
  Selector& selector = *c_.pipeline.selectors[index];
  SelectorAnswer answer;
  try {
    SelectArguments arguments;
    const bool tells = heats(index, input);
    fill(selector, input, tells, Stay::kChecked, arguments);
    if (tells) tell_scores(c_, input.pass, input.candidates, arguments.scores);
    const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, input.pass, selector.limits().unit,
                           c_.owner_of(&selector), input.candidates, selector.limits().scope);
    const bool contributes = selector.desc().needs & KVASIR_NEED_CONTRIBUTION;
    answer = call(selector, input, contributes ? input.pass.in.n : 0, [&](kvasir_selection& lists) {
      return selector.select(step.step(), arguments.in, lists);
    });
  } catch (const PluginError& error) {
    return failed(reason_beside(error, selector.id()));
  }
  if (answer.ok()) answer.fault = check_contribution(answer.lists, input.pass.pieces, c_.geometry);
  return answer;
}

SelectorAnswer SelectorCaller::select_there(size_t index, const SelectorInput& input) {
  Selector& selector = *c_.pipeline.selectors[index];
  const SelectorLimits& limits = selector.limits();
  const uint32_t heads = c_.geometry.n_kv_heads;
  SelectorAnswer answer;
  try {
    SelectArguments arguments;
    fill(selector, input, false, Stay::kUnchecked, arguments);
    const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, input.pass, limits.unit,
                           c_.owner_of(&selector), input.candidates, limits.scope);
    const uint64_t capacity = first_capacity(limits, input, heads);
    answer.lists = std::exchange(spare_, {});
    answer.lists.prepare(limits.unit, limits.scope, limits.action,
                         static_cast<uint32_t>(input.candidates.size()) * heads, capacity,
                         c_.group_size(), false);
    answer.index = c_.store.bridge().on_device(
        host_view(nullptr, KVASIR_DTYPE_U32, {std::max<uint64_t>(capacity, 1)}), index_hold_);
    answer.lists.view.index = nullptr;
    const kvasir_status status =
        selector.select_there(step.step(), arguments.in, answer.lists.view, answer.index);
    answer.lists.reclaim();
    answer.asks_dense = status == KVASIR_FALLBACK;
    if (!answer.asks_dense)
      answer.fault = check_lengths(answer.lists.view, limits.max_units, heads, input.candidates);
    answer.scores = std::move(arguments.scores);
  } catch (const PluginError& error) {
    return failed(reason_beside(error, selector.id()));
  }
  return answer;
}

std::string SelectorCaller::read_lists(size_t index, const SelectorInput& input,
                                       SelectorAnswer& answer, FiniteQuestion* beside) {
  const Selector& selector = *c_.pipeline.selectors[index];
  Engagement& engagement = c_.counters.of(false);
  const uint64_t n = answer.lists.offsets[answer.lists.view.n_lists];
  std::vector<kvasir_view> asked{elements(answer.scores.view, 0, answer.scores.offsets.back())};
  if (beside) asked.push_back(beside->of);
  std::vector<bool> are_finite;
  {
    const CheckClock clock(engagement.check_nanos);
    are_finite =
        c_.store.bridge().fetch(host_view(answer.lists.index.data(), KVASIR_DTYPE_U32, {n}),
                                elements(answer.index, 0, n), asked);
  }
  if (beside) beside->answer = are_finite[1];
  scorer_.accept(answer.scores, are_finite[0], input.pass, input.candidates);
  const CheckClock clock(engagement.check_nanos);
  std::string wrong = check(selector, input, false, answer.lists);
  if (wrong.empty()) engagement.selector_bytes_read += answer.lists.view.bytes_read;
  return wrong;
}

// By the scores of the strategy's first selector that has any, of decoded tokens.
bool SelectorCaller::heats(size_t index, const SelectorInput& input) const {
  const auto& selectors = c_.pipeline.selectors;
  const auto is_scored = [](const auto& s) { return (s->desc().needs & KVASIR_NEED_SCORES) != 0; };
  return c_.store.heat_wanted() == KVASIR_HEAT_SCORE && input.pass.pieces[0].decodes() &&
         std::find_if(selectors.begin(), selectors.end(), is_scored) - selectors.begin() ==
             static_cast<ptrdiff_t>(index);
}

SelectorAnswer SelectorCaller::speculate(const SelectorInput& input, uint32_t target) {
  Selector& selector = *c_.pipeline.selectors[0];
  kvasir_sel_in in{};
  in.struct_size = sizeof(in);
  in.q = q_for(selector, input.pass.in.q, input.pass.in.n);
  in.x = x_for(selector, input.pass.in);
  Pass of_target = input.pass;
  of_target.layer = target;
  const StepBuilder builder(c_, KVASIR_MOMENT_INPUT, of_target, selector.limits().unit,
                            c_.owner_of(&selector), input.candidates, selector.limits().scope);
  kvasir_step step = builder.step();
  step.layer = input.pass.layer;
  try {
    return call(selector, input, 0, [&](kvasir_selection& lists) {
      return selector.speculate(step, target, in, lists);
    });
  } catch (const PluginError& error) {
    return failed(reason_beside(error, selector.id()));
  }
}

kvasir_view SelectorCaller::q_for(const Selector& selector, const ModelRows& q, uint64_t n) {
  return c_.store.bridge().to_reader(
      selector,
      q.view_for(selector, c_.store.bridge(), {n, c_.geometry.n_q_heads, c_.geometry.head_dim}),
      q_hold_);
}

kvasir_view SelectorCaller::x_for(const Selector& selector, const Activations& in) {
  return c_.store.bridge().to_reader(
      selector, host_view(in.x, KVASIR_DTYPE_F32, {in.n, c_.model.shape().d_model}), x_hold_);
}

void SelectorCaller::fill(const Selector& selector, const SelectorInput& input, bool every_score,
                          Stay stay, SelectArguments& out) {
  const uint64_t needs = selector.desc().needs;
  const Pass& pass = input.pass;
  kvasir_sel_in& in = out.in;
  in.struct_size = sizeof(in);
  in.q = q_for(selector, pass.in.q_of_selected(), pass.in.n);
  if (needs & KVASIR_NEED_INPUT) in.x = x_for(selector, pass.in);
  if (!input.blocks.candidates_end.empty()) in.list_end = input.blocks.candidates_end.data();
  if (needs & KVASIR_NEED_SCORES) {
    const uint32_t n_best =
        every_score ? 0 : scores_that_count(selector, *c_.pipeline.representative, c_.geometry);
    const bool may_stay = selector.reads(KVASIR_MEM_DEVICE) && !every_score;
    out.scores = scorer_.score(pass, input.candidates, n_best, may_stay ? stay : Stay::kNever);
    in.n_score_heads = out.scores.n_heads;
    in.scores = is_host_memory(out.scores.view.mem_kind)
                    ? c_.store.bridge().to_reader(selector, out.scores.view, scores_hold_)
                    : out.scores.view;
    in.score_offsets = out.scores.offsets.data();
  }
  if (needs & KVASIR_NEED_KEYS) {
    for (const Piece& piece : pass.pieces) {
      const LayerState& state = piece.seq->layers[pass.layer];
      out.lease_offsets.push_back(out.leases.size());
      out.leases.insert(out.leases.end(), state.leases.begin(), state.leases.end());
    }
    out.lease_offsets.push_back(out.leases.size());
    in.leases = out.leases.data();
    in.lease_offsets = out.lease_offsets.data();
  }
}

uint32_t SelectorCaller::lists_per_piece(const Selector& selector,
                                         const QueryBlocks& blocks) const {
  return blocks.n *
         heads_in_scope(selector.limits().scope, c_.geometry.n_q_heads, c_.geometry.n_kv_heads);
}

SelectorAnswer SelectorCaller::call(const Selector& selector, const SelectorInput& input,
                                    uint64_t contribution_queries, const Function& fn) {
  const SelectorLimits& limits = selector.limits();
  const uint32_t per_piece = lists_per_piece(selector, input.blocks);
  uint64_t most = 0;
  for (const Candidates* candidates : input.candidates) most += per_piece * candidates->max_count();
  uint64_t& needed = needed_[&selector];
  uint64_t capacity =
      std::max(first_capacity(limits, input, per_piece / input.blocks.n), std::min(needed, most));
  SelectorAnswer answer;
  answer.lists = std::exchange(spare_, {});
  ListBuffer& lists = answer.lists;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    lists.prepare(limits.unit, limits.scope, limits.action,
                  static_cast<uint32_t>(input.candidates.size()) * per_piece, capacity,
                  c_.group_size(), selector.gives_weights());
    if (contribution_queries)
      lists.offer_contribution(contribution_queries, c_.geometry.n_q_heads, c_.geometry.v_dim);
    lists.view.query_block = input.blocks.size;
    const kvasir_status status = fn(lists.view);
    lists.reclaim();
    if (status == KVASIR_ERR_CAPACITY) {
      if (lists.view.needed <= capacity || lists.view.needed > most)
        return failed("asked for room for " + std::to_string(lists.view.needed) + " indices with " +
                      std::to_string(capacity) + " given and " + std::to_string(most) +
                      " possible");
      capacity = lists.view.needed;
      needed = std::max(needed, capacity);
      continue;
    }
    answer.asks_dense = status == KVASIR_FALLBACK;
    if (answer.asks_dense) return answer;
    if (status != KVASIR_OK) return failed("returned status " + std::to_string(status));
    Engagement& engagement = c_.counters.of(input.pass.pieces[0].prefills());
    {
      const CheckClock clock(engagement.check_nanos);
      answer.fault = check(selector, input, contribution_queries != 0, lists);
    }
    if (answer.fault.empty()) engagement.selector_bytes_read += lists.view.bytes_read;
    return answer;
  }
  return failed("asks for more room again and again");
}

// Its state, and sixteen times K and V in f32 with what a few megabytes more of tables take: who
// says that he read more counts something else.
uint64_t SelectorCaller::most_bytes_read(const SelectorInput& input,
                                         const SelectorLimits& limits) const {
  constexpr uint64_t kTables = uint64_t{64} << 20;
  const uint64_t token =
      sizeof(float) * uint64_t{c_.geometry.n_kv_heads} * (c_.geometry.head_dim + c_.geometry.v_dim);
  uint64_t bytes = kTables + std::max(limits.state_bytes, limits.state_peak_bytes);
  for (const Piece& piece : input.pass.pieces) bytes += 16 * token * piece.kv_len * piece.n_q;
  return bytes;
}

std::string SelectorCaller::check(const Selector& selector, const SelectorInput& input,
                                  bool may_contribute, const ListBuffer& lists) const {
  const SelectorLimits& limits = selector.limits();
  if (lists.view.unit != limits.unit) return "changed the unit of its lists";
  if (const uint64_t most = most_bytes_read(input, limits); lists.view.bytes_read > most)
    return "says that it read " + std::to_string(lists.view.bytes_read) +
           " bytes to choose; there are " + std::to_string(most) + " at most";
  CheckContext allowed;
  allowed.n_seqs = static_cast<uint32_t>(input.candidates.size());
  allowed.n_q_heads = c_.geometry.n_q_heads;
  allowed.n_kv_heads = c_.geometry.n_kv_heads;
  if (limits.max_units || limits.flags & KVASIR_LIMIT_ZERO_UNITS)
    allowed.max_units = limits.max_units;
  allowed.finest_scope = limits.scope;
  allowed.weights_allowed = selector.gives_weights();
  allowed.contribution_allowed = may_contribute;
  allowed.query_block = input.blocks.size;
  allowed.n_query_blocks = input.blocks.n;
  return check_selection(lists.view, allowed, input.candidates);
}

}  // namespace kvasir
