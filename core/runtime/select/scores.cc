// Asking the representative and reducing over the group; see scores.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/runtime/step/step_builder.h"
#include "kernels/row_ops.h"
#include "kernels/score_reduce.h"

namespace kvasir {
namespace {

using kernels::ScoreRule;
static_assert(static_cast<uint32_t>(ScoreRule::kSum) == KVASIR_REDUCE_SUM);
static_assert(static_cast<uint32_t>(ScoreRule::kMean) == KVASIR_REDUCE_MEAN);
static_assert(static_cast<uint32_t>(ScoreRule::kMax) == KVASIR_REDUCE_MAX);
static_assert(static_cast<uint32_t>(ScoreRule::kSoftmaxSum) == KVASIR_REDUCE_SOFTMAX_SUM);

// Reducing fewer scores than these takes less time than waking the workers.
constexpr uint64_t kManyScores = 1 << 15;

}  // namespace

Scores Scorer::score(const Pass& pass, const std::vector<const Candidates*>& candidates) {
  Pass asked = pass;
  const Queries queries = one_per_piece(asked);
  ask(asked, queries, candidates);
  const uint64_t record_bytes = c_.owners[0].slab.record_bytes();
  for (size_t i = 0; i < candidates.size(); ++i)
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head)
      c_.counters.of(pass.pieces[i].prefills()).representative_bytes_read +=
          candidates[i]->count(head) * record_bytes;
  return reduce(candidates);
}

Scorer::Queries Scorer::one_per_piece(Pass& pass) {
  bool are = true;
  for (size_t i = 0; i < pass.pieces.size(); ++i)
    are = are && pass.pieces[i].n_q == 1 && pass.pieces[i].q_begin == i;
  if (are) return {pass.in.q_of_selected(), pass.in.n};
  const uint64_t width = uint64_t{c_.geometry.n_q_heads} * c_.geometry.head_dim;
  means_.resize(pass.pieces.size() * width);
  for (size_t i = 0; i < pass.pieces.size(); ++i) {
    Piece& piece = pass.pieces[i];
    kernels::mean_of_rows(pass.in.q_of_selected() + piece.q_begin * width, piece.n_q, width,
                          means_.data() + i * width);
    piece.q_begin = static_cast<uint32_t>(i);
  }
  return {means_.data(), pass.pieces.size()};
}

void Scorer::ask(const Pass& pass, const Queries& queries,
                 const std::vector<const Candidates*>& candidates) {
  q_offsets_.assign(1, 0);
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < c_.geometry.n_q_heads; ++head)
      q_offsets_.push_back(q_offsets_.back() + candidate->count(head / c_.group_size()));
  of_q_heads_.assign(std::max<uint64_t>(q_offsets_.back(), 1),
                     std::numeric_limits<float>::quiet_NaN());  // until it is written
  const SlabOwner& owner = c_.owners[0];                        // the representative's
  const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, pass, KVASIR_UNIT_BLOCK, &owner, candidates);
  kvasir_score_in in{};
  in.struct_size = sizeof(in);
  MemoryBridge& bridge = c_.store.bridge();
  Representative& representative = *c_.pipeline.representative;
  in.q = bridge.to_reader(representative,
                          host_view(queries.q, KVASIR_DTYPE_F32,
                                    {queries.n, c_.geometry.n_q_heads, c_.geometry.head_dim}),
                          q_hold_);
  const kvasir_view into = host_view(of_q_heads_.data(), KVASIR_DTYPE_F32, {q_offsets_.back()});
  const kvasir_view there = bridge.to_writer(representative, into, score_hold_);
  kvasir_score_out result{sizeof(kvasir_score_out), 0, q_offsets_.data(), there};
  representative.score(step.step(), in, result);
  bridge.from_writer(there, into, 0, q_offsets_.back());
  if (!is_host_memory(there.mem_kind) &&  // in host memory they are checked where they come from
      !std::all_of(of_q_heads_.begin(), of_q_heads_.end(),
                   [](float score) { return std::isfinite(score); }))
    throw PluginError(representative.id(), "score", KVASIR_ERR_INTERNAL,
                      "a score is not finite, or was not written (a defect of the plugin)");
}

// Heads of one list have equally many candidates: the query heads of a kv head, or all of them
// where they share.
Scores Scorer::reduce(const std::vector<const Candidates*>& candidates) const {
  Scores out;
  out.n_heads = c_.geometry.head_select_shared ? 1 : c_.geometry.n_kv_heads;
  out.offsets.push_back(0);
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < out.n_heads; ++head)
      out.offsets.push_back(out.offsets.back() + candidate->count(head));
  out.value.resize(std::max<uint64_t>(out.offsets.back(), 1));
  const uint32_t group = c_.geometry.n_q_heads / out.n_heads;
  const auto rule = static_cast<ScoreRule>(c_.geometry.gqa_reduce);
  const auto reduce_lists = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i)
      kernels::reduce_scores(rule, of_q_heads_.data() + q_offsets_[i * group], group,
                             out.offsets[i + 1] - out.offsets[i], c_.geometry.softmax_scale,
                             out.value.data() + out.offsets[i]);
  };
  const uint64_t n_lists = out.offsets.size() - 1;
  if (q_offsets_.back() < kManyScores)
    reduce_lists(0, n_lists, 0);
  else
    c_.pool.parallel_for(n_lists, 1, reduce_lists);
  return out;
}

}  // namespace kvasir
