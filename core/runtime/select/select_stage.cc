// Selection; see select_stage.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/select_stage.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir {
namespace {

constexpr uint64_t kWeightNeeds = KVASIR_NEED_LOG_WEIGHT | KVASIR_NEED_HEAD_LOG_WEIGHT;

// How the scores of several query heads become one (arXiv:2406.10774 leaves it open under GQA).
void reduce_rows(uint32_t rule, float scale, const float* in, uint64_t n_heads, uint64_t n,
                 float* out) {
  std::fill(out, out + n, rule == KVASIR_REDUCE_MAX ? -INFINITY : 0.0f);
  for (uint64_t head = 0; head < n_heads; ++head) {
    const float* row = in + head * n;
    if (rule == KVASIR_REDUCE_MAX) {
      for (uint64_t i = 0; i < n; ++i) out[i] = std::max(out[i], row[i]);
    } else if (rule == KVASIR_REDUCE_SOFTMAX_SUM) {
      float high = -INFINITY;
      for (uint64_t i = 0; i < n; ++i) high = std::max(high, row[i]);
      float sum = 0.0f;
      for (uint64_t i = 0; i < n; ++i) sum += std::exp((row[i] - high) * scale);
      for (uint64_t i = 0; i < n; ++i) out[i] += std::exp((row[i] - high) * scale) / sum;
    } else {
      for (uint64_t i = 0; i < n; ++i) out[i] += row[i];
    }
  }
  if (rule == KVASIR_REDUCE_MEAN)
    for (uint64_t i = 0; i < n; ++i) out[i] /= static_cast<float>(n_heads);
}

}  // namespace

bool SelectStage::selects_in_prefill() const {
  for (const auto& selector : c_.pipeline.selectors)
    if (selector->limits().flags & KVASIR_LIMIT_PREFILL_SELECT) return true;
  return false;
}

// token_step if set, else the plugin's reuse_steps; both: the smaller.
bool SelectStage::due(uint32_t layer, const Sequence& seq) const {
  const LayerSelection& last = seq.layers[layer].selection;
  if (!last.valid || last.dense || last.contributed) return true;
  const uint32_t age = seq.decode_index - last.made_at;
  const uint32_t step = c_.cache.token_step.value;
  if (last.speculated && (age == 0 || !step)) return age > 0;
  uint64_t keep = step ? step : uint64_t{last.reuse_steps} + 1;
  if (step && last.reuse_steps) keep = std::min<uint64_t>(keep, uint64_t{last.reuse_steps} + 1);
  if (step && !last.reuse_steps) return seq.decode_index % step == 0 || age >= step;
  return age >= keep;
}

// What the leader of the group chose, as far as the layer's own restriction lets it; where nobody
// chose, all that this layer may reach.
const LayerSelection* SelectStage::follow(uint32_t layer, const Piece& piece,
                                          const LayerSelection& chosen) const {
  LayerState& state = piece.seq->layers[layer];
  if (state.restricted.empty()) return &chosen;
  const Candidates own = live_candidates(state, chosen.unit, {chosen.sink_end, chosen.window_begin},
                                         c_.geometry.block_size, c_.geometry.n_kv_heads);
  LayerSelection& out = state.selection;
  out = chosen;
  out.dense = false;
  out.standing.clear();
  out.heads.assign(c_.geometry.n_kv_heads, {});
  for (uint32_t head = 0; head < out.heads.size(); ++head) {
    const auto& reachable = own.heads[head].index;
    if (chosen.dense || chosen.unchosen) {
      out.heads[head].index = reachable;
      continue;
    }
    const HeadSelection& from = chosen.head(head);
    for (size_t i = 0; i < from.index.size(); ++i) {
      if (!std::binary_search(reachable.begin(), reachable.end(), from.index[i])) continue;
      out.heads[head].index.push_back(from.index[i]);
      for (uint32_t w = 0; w < chosen.width; ++w)
        out.heads[head].weight.push_back(from.weight[i * chosen.width + w]);
    }
  }
  return &out;
}

SelectStage::Work SelectStage::start(uint32_t layer, const Piece& piece) const {
  const uint32_t forced_unit = c_.forced_unit();
  const ForcedRange forced =
      forced_range(c_.cache, forced_unit, piece.first_pos() + 1, piece.seq->prompt_end);
  Work work;
  work.piece = piece;
  work.out = &piece.seq->layers[layer].selection;
  *work.out = {};
  work.out->sink_end = forced.sink_end;
  work.out->window_begin = forced.window_begin;
  work.out->made_at = piece.seq->decode_index;
  work.candidates =
      live_candidates(piece.seq->layers[layer], c_.pipeline.selectors[0]->limits().unit, forced,
                      c_.geometry.block_size, c_.geometry.n_kv_heads);
  if (c_.pipeline.selectors[0]->limits().scope == KVASIR_SCOPE_SEQUENCE ||
      c_.geometry.head_select_shared)
    share_candidates(work.candidates);
  return work;
}

std::vector<const LayerSelection*> SelectStage::select(uint32_t layer, std::vector<Piece> pieces,
                                                       const Inputs& inputs) {
  dense_.valid = dense_.dense = true;
  contribution_.lse.clear();
  std::vector<const LayerSelection*> result(pieces.size(), &dense_);
  if (c_.pipeline.selectors.empty() || c_.dense_layer[layer]) return result;
  std::vector<Work> works, begun;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool prefill = pieces[i].prefills();
    if (prefill && !selects_in_prefill()) continue;
    const uint32_t leader = prefill ? layer : c_.group_leader[layer];
    LayerSelection& selection = pieces[i].seq->layers[leader].selection;
    result[i] = &selection;
    if (leader != layer || (!prefill && !due(layer, *pieces[i].seq))) {
      const bool ahead = selection.speculated && selection.made_at == pieces[i].seq->decode_index;
      if (leader == layer && ahead && c_.pipeline.selectors.size() > 1) {
        begun.push_back(resume(layer, pieces[i]));
        continue;
      }
      if (leader != layer || !ahead) ++c_.counters(prefill).reused;
      if (leader != layer) result[i] = follow(layer, pieces[i], selection);
      if (leader == layer && !selection.standing.empty()) roll(layer, pieces[i]);
      continue;
    }
    const uint32_t step = c_.cache.token_step.value;
    if (!prefill && step && !selection.reuse_steps && pieces[i].seq->decode_index % step != 0)
      pieces[i].flags |= KVASIR_STEP_FORCED;
    works.push_back(start(layer, pieces[i]));
  }
  if (!works.empty()) run_chain(0, layer, works, inputs);
  if (!begun.empty()) run_chain(1, layer, begun, inputs);
  return result;
}

// Its first selector has spoken already, a layer ahead; the others choose from what it left.
SelectStage::Work SelectStage::resume(uint32_t layer, const Piece& piece) const {
  LayerSelection before = std::move(piece.seq->layers[layer].selection);
  Work work = start(layer, piece);
  work.bypassed = before.unchosen;
  work.reuse_steps = before.reuse_steps;
  narrow(work, std::move(before.heads), before.width);
  return work;
}

void SelectStage::run_chain(size_t first, uint32_t layer, std::vector<Work>& works,
                            const Inputs& inputs) {
  for (size_t s = first; s < c_.pipeline.selectors.size(); ++s) {
    const Selector& selector = *c_.pipeline.selectors[s];
    const SelectorLimits& limits = selector.limits();
    std::vector<Work*> todo;
    for (Work& work : works) {
      if (work.failed) continue;
      if (limits.unit == KVASIR_UNIT_TOKEN && work.candidates.unit == KVASIR_UNIT_BLOCK)
        work.candidates = expand_to_tokens(work.candidates, c_.geometry.block_size);
      if (!selector.has_select()) continue;
      if (s > 0 && limits.scope == KVASIR_SCOPE_SEQUENCE && work.width == 0)
        share_candidates(work.candidates);
      const bool covers = (limits.max_units && work.candidates.max_count() <= limits.max_units) ||
                          work.piece.kv_len < limits.dense_below_tokens ||
                          work.candidates.max_count() == 0;
      if (work.piece.kv_len < c_.cache.dense_below_tokens.value) continue;
      if (c_.cache.bypass.value && covers) continue;
      work.bypassed = false;
      todo.push_back(&work);
    }
    if (!todo.empty()) run_selector(s, layer, todo, inputs);
  }
  for (Work& work : works) finish(work);
}

void SelectStage::finish(Work& work) const {
  LayerSelection& out = *work.out;
  out.valid = true;
  out.unchosen = work.bypassed;
  if (work.bypassed) ++counters(work).bypassed;
  out.unit = work.candidates.unit;
  out.width = work.width;
  out.reuse_steps = work.reuse_steps;
  out.contributed = work.contributed;
  out.dense = work.failed || !work.candidates.listed;
  if (out.dense) return;
  out.heads = std::move(work.candidates.heads);
  out.standing = std::move(work.standing);
}

// Where the strategy says on_fault = fail the sequences end, else the step is dense for them.
void SelectStage::fault(size_t index, const std::string& function, uint32_t layer,
                        const std::vector<Work*>& works, const std::string& text) {
  const auto report = [&] {
    c_.report_fault(index, function, layer, works[0]->piece.seq->id, text,
                    "attending densely in this step");
  };
  if (!guard_piece(works[0]->piece, report))
    for (const Work* work : works) work->piece.seq->fail(works[0]->piece.seq->fault);
  fall_back(works);
}

void SelectStage::fall_back(const std::vector<Work*>& works) {
  for (Work* work : works) {
    work->failed = true;
    ++counters(*work).fallbacks;
  }
}

// Rows that said ALL or NONE speak of what has become a candidate since, too.
void SelectStage::roll(uint32_t layer, const Piece& piece) const {
  LayerSelection& selection = piece.seq->layers[layer].selection;
  const LayerSelection before = std::exchange(selection, {});
  Work work = start(layer, piece);
  narrow(work, std::vector<HeadSelection>(before.standing), 0);
  work.bypassed = false;
  work.reuse_steps = before.reuse_steps;
  work.standing = before.standing;
  finish(work);
  selection.made_at = before.made_at;
}

bool SelectStage::call(Selector& selector, const std::vector<Work*>& works, const Allowed& allowed,
                       const std::function<kvasir_status(kvasir_selection&)>& fn, ListBuffer& lists,
                       std::string* fault) {
  const SelectorLimits& limits = selector.limits();
  const uint32_t heads = limits.scope == KVASIR_SCOPE_SEQUENCE  ? 1
                         : limits.scope == KVASIR_SCOPE_KV_HEAD ? c_.geometry.n_kv_heads
                                                                : c_.geometry.n_q_heads;
  const uint32_t n_lists = works[0]->n_lists;
  const auto max_lists = static_cast<uint32_t>(works.size()) * heads * n_lists;
  uint64_t capacity = 0;
  for (const Work* work : works)
    capacity += heads * (limits.max_units ? std::min(limits.max_units, work->candidates.max_count())
                                          : std::min<uint64_t>(work->candidates.max_count(), 1024));
  // Lists of many query blocks are rarely as long as they may be.
  capacity *= std::min(n_lists, 4u);
  std::vector<const Candidates*> candidates;
  candidates.reserve(works.size());
  for (const Work* work : works) candidates.push_back(&work->candidates);
  for (int attempt = 0; attempt < 3; ++attempt) {
    lists.prepare(limits.unit, limits.scope, limits.action, max_lists, capacity, c_.group_size());
    if (allowed.contribution_queries)
      lists.offer_contribution(allowed.contribution_queries, c_.geometry.n_q_heads,
                               c_.geometry.v_dim);
    lists.view.query_block = works[0]->query_block;
    const kvasir_status status = fn(lists.view);
    lists.reclaim();
    if (status == KVASIR_ERR_CAPACITY) {
      uint64_t most = 0;
      for (const Work* work : works)
        most += uint64_t{heads} * n_lists * work->candidates.max_count();
      if (lists.view.needed <= capacity || lists.view.needed > most) {
        *fault = "asked for room for " + std::to_string(lists.view.needed) + " indices with " +
                 std::to_string(capacity) + " given and " + std::to_string(most) + " possible";
        return false;
      }
      capacity = lists.view.needed;
      continue;
    }
    if (status == KVASIR_FALLBACK) {
      *fault = "";
      return false;
    }
    if (status != KVASIR_OK) {
      *fault = "returned status " + std::to_string(status);
      return false;
    }
    CheckContext check;
    check.n_seqs = static_cast<uint32_t>(works.size());
    check.n_q_heads = c_.geometry.n_q_heads;
    check.n_kv_heads = c_.geometry.n_kv_heads;
    if (limits.max_units || limits.flags & KVASIR_LIMIT_ZERO_UNITS)
      check.max_units = limits.max_units;
    check.finest_scope = limits.scope;
    check.weights_allowed = allowed.weights;
    check.contribution_allowed = allowed.contribution_queries != 0;
    check.query_block = works[0]->query_block;
    check.n_query_blocks = n_lists;
    *fault = lists.view.unit != limits.unit ? "changed the unit of its rows"
                                            : check_selection(lists.view, check, candidates);
    if (fault->empty()) counters(*works[0]).selector_bytes_read += lists.view.bytes_read;
    return fault->empty();
  }
  *fault = "asks for more room again and again";
  return false;
}

// A call that fails, or asks for dense attention, for several sequences is made again for each.
// Selectors give the same answer to the same question, so that the others lose nothing.
void SelectStage::run_selector(size_t index, uint32_t layer, const std::vector<Work*>& works,
                               const Inputs& inputs) {
  if (c_.aside(index)) return fall_back(works);
  std::vector<Work*> todo;
  for (Work* work : works) {  // a storage's failure is not the selector's
    LayerState& state = work->piece.seq->layers[layer];
    const bool wants_keys = c_.pipeline.selectors[index]->desc().needs & KVASIR_NEED_KEYS;
    if (wants_keys && !guard_piece(work->piece, [&] { c_.store.make_all_resident(state); })) {
      work->failed = true;
      continue;
    }
    ++counters(*work).selections;
    todo.push_back(work);
  }
  if (todo.empty()) return;
  const std::string text = ask(index, layer, todo, inputs);
  if (text.empty()) return;
  if (todo.size() == 1) return fault(index, "select", layer, todo, text);
  for (Work* work : todo) {
    const std::string of_one = ask(index, layer, {work}, inputs);
    if (!of_one.empty()) fault(index, "select", layer, {work}, of_one);
  }
}

std::string SelectStage::ask(size_t index, uint32_t layer, const std::vector<Work*>& works,
                             const Inputs& inputs) {
  Selector& selector = *c_.pipeline.selectors[index];
  const uint64_t needs = selector.desc().needs;
  std::vector<Piece> pieces;
  std::vector<const Candidates*> candidates;
  for (const Work* work : works) {
    pieces.push_back(work->piece);
    candidates.push_back(&work->candidates);
  }
  std::string fault_text;
  ListBuffer result;
  try {
    kvasir_sel_in in{};
    in.struct_size = sizeof(in);
    MemoryBridge& bridge = c_.store.bridge();
    in.q = bridge.to_reader(
        selector, view_f32(inputs.q, inputs.n, c_.geometry.n_q_heads, c_.geometry.head_dim),
        q_hold_);
    if (needs & KVASIR_NEED_INPUT)
      in.x = bridge.to_reader(selector, view_f32(inputs.x, inputs.n, c_.model.shape().d_model),
                              x_hold_);
    if (!works[0]->list_end.empty()) in.list_end = works[0]->list_end.data();
    Scores scores;
    if (needs & KVASIR_NEED_SCORES) {
      score(layer, works, inputs, scores);
      in.n_score_heads = scores.n_heads;
      in.scores = bridge.to_reader(
          selector, host_view(scores.reduced.data(), KVASIR_DTYPE_F32, {scores.reduced.size()}),
          scores_hold_);
      in.score_offsets = scores.offsets.data();
    }
    std::vector<kvasir_lease> leases;
    std::vector<uint64_t> lease_offsets;
    if (needs & KVASIR_NEED_KEYS) {
      for (const Piece& piece : pieces) {
        const LayerState& state = piece.seq->layers[layer];
        lease_offsets.push_back(leases.size());
        leases.insert(leases.end(), state.leases.begin(), state.leases.end());
      }
      lease_offsets.push_back(leases.size());
      in.leases = leases.data();
      in.lease_offsets = lease_offsets.data();
    }
    const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, layer, pieces, selector.limits().unit,
                           c_.owner_of(&selector), candidates, selector.limits().scope);
    const bool ok = call(
        selector, works,
        {(needs & kWeightNeeds) != 0, needs & KVASIR_NEED_CONTRIBUTION ? inputs.n : 0},
        [&](kvasir_selection& out) { return selector.select(step.step(), in, out); }, result,
        &fault_text);
    if (!ok && fault_text.empty()) {  // it asks for dense attention: for which of them?
      if (works.size() > 1) return "fallback";
      fall_back(works);
      return "";
    }
  } catch (const PluginError& e) {
    fault_text = e.what();
  }
  if (fault_text.empty()) fault_text = check_contribution(result, pieces);
  if (!fault_text.empty()) return fault_text;
  for (size_t i = 0; i < works.size(); ++i) {
    if (works[i]->keeps_lists) {
      take_lists(*works[i], result, static_cast<uint32_t>(i));
      continue;
    }
    uint32_t width = 0;
    bool fallback = false;
    auto heads = heads_of(result.view, static_cast<uint32_t>(i), c_.geometry.n_q_heads,
                          c_.geometry.n_kv_heads, works[i]->candidates, &width, &fallback);
    if (fallback) {
      fall_back({works[i]});
      continue;
    }
    bool standing = c_.pipeline.selectors.size() == 1 && width == 0;
    for (size_t r = i * heads.size(); r < (i + 1) * heads.size(); ++r)
      standing = standing && result.flags[r] != KVASIR_LIST_LISTED;
    if (standing) works[i]->standing = heads;
    narrow(*works[i], std::move(heads), width);
    const uint32_t reuse = result.view.reuse_steps;
    works[i]->contributed = take_contribution(result, works[i]->piece);
    works[i]->reuse_steps = index == 0 ? reuse : std::min(works[i]->reuse_steps, reuse);
  }
  return "";
}

// Replaces the candidates by what was chosen among them; log-weights add along the chain.
void SelectStage::narrow(Work& work, std::vector<HeadSelection>&& heads, uint32_t width) const {
  Candidates next;
  next.unit = work.candidates.unit;
  next.begin = work.candidates.begin;
  next.end = work.candidates.end;
  next.listed = true;
  const uint32_t out_width = std::max(width, work.width);
  for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) {
    HeadSelection chosen = heads.size() == 1 ? heads[0] : std::move(heads[head]);
    if (chosen.all) {
      chosen.all = false;
      chosen.index.clear();
      if (work.candidates.listed)
        chosen.index = work.candidates.heads[head].index;
      else
        for (uint32_t u = next.begin; u < next.end; ++u) chosen.index.push_back(u);
      chosen.weight.assign(chosen.index.size() * width, 0.0f);
    }
    if (work.candidates.listed) {  // a shared row may name what only another head may reach
      const HeadSelection& before = work.candidates.heads[head];
      HeadSelection kept;
      for (size_t i = 0; i < chosen.index.size(); ++i) {
        const auto at = std::lower_bound(before.index.begin(), before.index.end(), chosen.index[i]);
        if (at == before.index.end() || *at != chosen.index[i]) continue;
        kept.index.push_back(chosen.index[i]);
        const auto old = static_cast<size_t>(at - before.index.begin());
        for (uint32_t w = 0; w < out_width; ++w) {
          const float a = width ? chosen.weight[i * width + (width == 1 ? 0 : w)] : 0.0f;
          const float b =
              work.width ? before.weight[old * work.width + (work.width == 1 ? 0 : w)] : 0.0f;
          kept.weight.push_back(a + b);
        }
      }
      chosen = std::move(kept);
    }
    next.heads.push_back(std::move(chosen));
  }
  work.width = out_width;
  work.candidates = std::move(next);
}

void SelectStage::score(uint32_t layer, const std::vector<Work*>& works, const Inputs& inputs,
                        Scores& out) {
  const uint32_t q_heads = c_.geometry.n_q_heads, dim = c_.geometry.head_dim;
  const float* q = inputs.q;
  uint64_t n_queries = inputs.n;
  std::vector<Piece> pieces;
  std::vector<const Candidates*> candidates;
  std::vector<float> pooled;  // one query per row
  bool direct = true;
  for (const Work* work : works) {
    direct = direct && work->piece.n_q == 1 && work->piece.q_begin == pieces.size();
    pieces.push_back(work->piece);
    candidates.push_back(&work->candidates);
  }
  if (!direct) {
    pooled.assign(works.size() * q_heads * dim, 0.0f);
    n_queries = works.size();
    for (size_t i = 0; i < works.size(); ++i) {
      const uint32_t n = pieces[i].n_q;
      for (uint32_t row = 0; row < n; ++row)
        for (uint64_t d = 0; d < uint64_t{q_heads} * dim; ++d)
          pooled[i * q_heads * dim + d] +=
              q[(uint64_t{pieces[i].q_begin} + row) * q_heads * dim + d] / static_cast<float>(n);
      pieces[i].q_begin = static_cast<uint32_t>(i);
    }
    q = pooled.data();
  }
  out.q_offsets.push_back(0);
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < q_heads; ++head)
      out.q_offsets.push_back(out.q_offsets.back() + candidate->count(head / c_.group_size()));
  out.per_q_head.resize(std::max<uint64_t>(out.q_offsets.back(), 1));
  const SlabOwner& owner = c_.owners[0];  // the representative's
  const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, layer, pieces, KVASIR_UNIT_BLOCK, &owner,
                         candidates);
  kvasir_score_in in{};
  in.struct_size = sizeof(in);
  MemoryBridge& bridge = c_.store.bridge();
  Representative& representative = *c_.pipeline.representative;
  in.q = bridge.to_reader(representative, view_f32(q, n_queries, q_heads, dim), score_q_hold_);
  const kvasir_view into =
      host_view(out.per_q_head.data(), KVASIR_DTYPE_F32, {out.q_offsets.back()});
  const kvasir_view there = bridge.to_writer(representative, into, score_hold_);
  kvasir_score_out result{sizeof(kvasir_score_out), 0, out.q_offsets.data(), there};
  representative.score(step.step(), in, result);
  bridge.from_writer(there, into, 0, out.q_offsets.back());
  if (!is_host_memory(there.mem_kind) &&  // in host memory they are checked where they come from
      !std::all_of(out.per_q_head.begin(), out.per_q_head.end(),
                   [](float score) { return std::isfinite(score); }))
    throw PluginError(representative.id(), "score", KVASIR_ERR_INTERNAL,
                      "a score is not a number or infinite");
  for (const Work* work : works)
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head)
      counters(*work).representative_bytes_read +=
          work->candidates.count(head) * owner.slab.record_bytes();
  reduce(works, out);
}

void SelectStage::reduce(const std::vector<Work*>& works, Scores& scores) const {
  const uint32_t q_heads = c_.geometry.n_q_heads, group = c_.group_size();
  const bool shared = c_.geometry.head_select_shared != 0;
  scores.n_heads = shared ? 1 : c_.geometry.n_kv_heads;
  scores.offsets.push_back(0);
  scores.reduced.reserve(scores.per_q_head.size() / group + 1);
  for (size_t i = 0; i < works.size(); ++i) {
    const Candidates& candidates = works[i]->candidates;
    const uint32_t per = shared ? q_heads : group;
    for (uint32_t head = 0; head < scores.n_heads; ++head) {
      const uint64_t n = candidates.count(head);
      const uint64_t at = scores.offsets.back();
      scores.reduced.resize(at + n);
      reduce_rows(c_.geometry.gqa_reduce, c_.geometry.softmax_scale,
                  scores.per_q_head.data() + scores.q_offsets[i * q_heads + uint64_t{head} * per],
                  per, n, scores.reduced.data() + at);
      scores.offsets.push_back(at + n);
    }
  }
}

uint32_t SelectStage::speculation_target(uint32_t layer, const std::vector<Piece>& pieces) const {
  if (c_.pipeline.selectors.empty()) return 0;
  const Selector& selector = *c_.pipeline.selectors[0];
  const uint32_t ahead = selector.limits().speculate_ahead;
  const uint32_t target = layer + ahead;
  if (!ahead || !selector.has_speculate() || target >= c_.geometry.n_layers ||
      c_.dense_layer[target] || c_.group_leader[target] != target)
    return 0;
  for (const Piece& piece : pieces)
    if (due(target, *piece.seq)) return target;
  return 0;
}

void SelectStage::speculate(uint32_t layer, uint32_t target, const std::vector<Piece>& pieces,
                            const float* x, const float* q, uint64_t n_queries) {
  if (speculate_together(layer, target, pieces, x, q, n_queries)) return;
  const size_t x_width = c_.model.shape().d_model;
  const size_t q_width = size_t{c_.geometry.n_q_heads} * c_.geometry.head_dim;
  for (const Piece& piece : pieces) {
    Piece alone = piece;
    alone.q_begin = 0;
    speculate_together(layer, target, {alone}, x + piece.q_begin * x_width,
                       q + piece.q_begin * q_width, 1);
  }
}

// False: the call failed, or asked for dense attention, for several sequences.
bool SelectStage::speculate_together(uint32_t layer, uint32_t target,
                                     const std::vector<Piece>& pieces, const float* x,
                                     const float* q, uint64_t n_queries) {
  Selector& selector = *c_.pipeline.selectors[0];
  if (c_.aside(0)) return true;
  std::vector<Work> works;
  std::vector<Work*> todo;
  std::vector<Piece> todo_pieces;
  std::vector<LayerSelection> scratch(pieces.size());
  for (const Piece& piece : pieces) {
    if (!due(target, *piece.seq)) continue;
    LayerSelection before = piece.seq->layers[target].selection;
    Work work = start(target, piece);
    scratch[works.size()] = std::move(*work.out);
    piece.seq->layers[target].selection = std::move(before);
    const uint64_t most = work.candidates.max_count();
    const SelectorLimits& limits = selector.limits();
    if (piece.kv_len < c_.cache.dense_below_tokens.value) continue;
    if (most == 0 || (c_.cache.bypass.value && ((limits.max_units && most <= limits.max_units) ||
                                                piece.kv_len < limits.dense_below_tokens)))
      continue;
    work.bypassed = false;
    works.push_back(std::move(work));
  }
  for (Work& work : works) {
    todo.push_back(&work);
    todo_pieces.push_back(work.piece);
  }
  if (todo.empty()) return true;
  std::vector<const Candidates*> candidates;
  candidates.reserve(works.size());
  for (const Work& work : works) candidates.push_back(&work.candidates);
  kvasir_sel_in in{};
  in.struct_size = sizeof(in);
  MemoryBridge& bridge = c_.store.bridge();
  in.q = bridge.to_reader(
      selector, view_f32(q, n_queries, c_.geometry.n_q_heads, c_.geometry.head_dim), q_hold_);
  in.x = bridge.to_reader(selector, view_f32(x, n_queries, c_.model.shape().d_model), x_hold_);
  StepBuilder builder(c_, KVASIR_MOMENT_INPUT, target, todo_pieces, selector.limits().unit,
                      c_.owner_of(&selector), candidates, selector.limits().scope);
  kvasir_step step = builder.step();
  step.layer = layer;
  ListBuffer result;
  std::string text;
  try {
    const bool ok = call(
        selector, todo, {(selector.desc().needs & kWeightNeeds) != 0, 0},
        [&](kvasir_selection& out) { return selector.speculate(step, target, in, out); }, result,
        &text);
    if (!ok && works.size() > 1) return false;
    if (!ok && text.empty()) return true;
  } catch (const PluginError& e) {
    if (works.size() > 1) return false;
    text = e.what();
  }
  if (!text.empty()) {
    fault(0, "speculate", layer, todo, text);
    return true;
  }
  for (size_t i = 0; i < works.size(); ++i) {
    uint32_t width = 0;
    bool fallback = false;
    auto heads = heads_of(result.view, static_cast<uint32_t>(i), c_.geometry.n_q_heads,
                          c_.geometry.n_kv_heads, works[i].candidates, &width, &fallback);
    if (fallback) continue;
    narrow(works[i], std::move(heads), width);
    works[i].out = &scratch[i];
    finish(works[i]);
    LayerState& state = works[i].piece.seq->layers[target];
    const auto fetch = [&] {
      if (c_.store.moves())
        c_.store.prefetch(state, needed_by(scratch[i], c_.geometry.block_size,
                                           c_.geometry.n_kv_heads, state.blocks.size()));
    };
    if (!guard_piece(works[i].piece, fetch)) continue;
    if (result.view.flags & KVASIR_SELECTION_FINAL) {
      ++c_.decode.selections;  // in place of select() of the target
      scratch[i].reuse_steps = 0;
      state.selection = std::move(scratch[i]);
      state.selection.speculated = true;
    }
  }
  return true;
}

}  // namespace kvasir
