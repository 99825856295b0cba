// Asking the representative and reducing over the group; see scores.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/scores.h"

#include <algorithm>
#include <limits>

#include "core/runtime/step/check_clock.h"
#include "core/runtime/step/finite.h"
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

bool gives_sums(const Representative& representative, const kvasir_geometry& geometry) {
  return representative.sums_scores() &&
         (geometry.gqa_reduce == KVASIR_REDUCE_SUM || geometry.gqa_reduce == KVASIR_REDUCE_MEAN);
}

uint32_t scores_that_count(const Selector& selector, const Representative& representative,
                           const kvasir_geometry& geometry) {
  const SelectorLimits& limits = selector.limits();
  if (!(limits.flags & KVASIR_LIMIT_BEST_SCORES) || geometry.head_select_shared ||
      !gives_sums(representative, geometry))
    return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(limits.max_units, UINT32_MAX));
}

// A mean is divided by the host: two sums that differ may have one mean.
bool scores_can_stay(const Pipeline& pipeline, const kvasir_geometry& geometry) {
  const Representative& representative = *pipeline.representative;
  return gives_sums(representative, geometry) && !geometry.head_select_shared &&
         geometry.gqa_reduce == KVASIR_REDUCE_SUM && !representative.writes(KVASIR_MEM_HOST) &&
         pipeline.storage->checks_finite();
}

bool can_foresee(const Pipeline& pipeline, const kvasir_geometry& geometry, Foresee how) {
  if (how == Foresee::kOff || pipeline.selectors.size() != 1 || !pipeline.representative)
    return false;
  const Selector& selector = *pipeline.selectors[0];
  if (selector.limits().speculate_ahead && selector.has_speculate()) return false;
  if (how == Foresee::kRead)
    return scores_that_count(selector, *pipeline.representative, geometry) > 0;
  const uint64_t needs = selector.desc().needs;
  return selector.has_select() && needs & KVASIR_NEED_SCORES &&
         !(needs & (KVASIR_NEED_KEYS | KVASIR_NEED_UNROTATED_K));
}

Scores Scorer::score(const Pass& pass, const std::vector<const Candidates*>& candidates,
                     uint32_t n_best, Stay stay) {
  Pass asked = pass;
  const Queries queries = one_per_piece(asked);
  Scores out = lay_out(candidates);
  MemoryBridge& bridge = c_.store.bridge();
  const uint64_t n_given = given_offsets_.back();
  if (stay != Stay::kNever && scores_can_stay(c_.pipeline, c_.geometry)) {
    out.view = bridge.to_writer(*c_.pipeline.representative,
                                host_view(nullptr, KVASIR_DTYPE_F32, {n_given}), score_hold_);
    out.read = ask(asked, queries, candidates, n_best, out.view);
    if (stay == Stay::kUnchecked) return out;
    bool are_finite = true;
    {
      const CheckClock clock(c_.counters.of(pass.pieces[0].prefills()).check_nanos);
      are_finite = n_given == 0 || bridge.all_finite(out.view);
    }
    accept(out, are_finite, pass, candidates);
    return out;
  }
  out.value.resize(std::max<uint64_t>(out.offsets.back(), 1));
  std::vector<float>& given = is_given(out) ? out.value : given_;
  given.assign(std::max<uint64_t>(n_given, 1), std::numeric_limits<float>::quiet_NaN());
  const kvasir_view there =
      bridge.to_writer(*c_.pipeline.representative,
                       host_view(given.data(), KVASIR_DTYPE_F32, {n_given}), score_hold_);
  const uint64_t read = ask(asked, queries, candidates, n_best, there);
  bring_back(there, given);
  if (!is_given(out)) reduce(out);
  if (sums() && c_.geometry.gqa_reduce == KVASIR_REDUCE_MEAN)
    for (float& score : out.value) score /= static_cast<float>(c_.geometry.n_q_heads / out.n_heads);
  out.view = host_view(out.value.data(), KVASIR_DTYPE_F32, {out.offsets.back()});
  count(pass, candidates, read);
  return out;
}

void Scorer::accept(const Scores& scores, bool are_finite, const Pass& pass,
                    const std::vector<const Candidates*>& candidates) {
  check_finite(are_finite);
  count(pass, candidates, scores.read);
}

// read: 0 = every record; else each piece has its share by the number of its candidates.
void Scorer::count(const Pass& pass, const std::vector<const Candidates*>& candidates,
                   uint64_t read) {
  const RecordLayout& layout = c_.owners[0].layout;
  const auto bytes_of = [&](const Candidates& of) {
    uint64_t n = 0;
    for (uint32_t head = 0; head < c_.geometry.n_kv_heads; ++head) n += of.count(head);
    return n * layout.record_bytes;
  };
  uint64_t all = 0;
  for (const Candidates* of : candidates) all += bytes_of(*of);
  // A record and what belongs to its page, at the most.
  if (read > all + all / layout.record_bytes * layout.page_bytes)
    throw PluginError(c_.pipeline.representative->id(), "score", KVASIR_ERR_INTERNAL,
                      "it claims to have read " + std::to_string(read) +
                          " bytes, more than all records of the candidates and their pages (a "
                          "defect of the plugin)");
  for (size_t i = 0; i < candidates.size(); ++i) {
    const uint64_t bytes = bytes_of(*candidates[i]);
    c_.counters.of(pass.pieces[i].prefills()).representative_bytes_read +=
        read == 0 ? bytes
                  : static_cast<uint64_t>(static_cast<double>(read) * static_cast<double>(bytes) /
                                          static_cast<double>(all));
  }
}

Scorer::Queries Scorer::one_per_piece(Pass& pass) {
  bool are = true;
  for (size_t i = 0; i < pass.pieces.size(); ++i)
    are = are && pass.pieces[i].n_q == 1 && pass.pieces[i].q_begin == i;
  if (are) return {pass.in.q_of_selected(), pass.in.n};
  const uint64_t width = uint64_t{c_.geometry.n_q_heads} * c_.geometry.head_dim;
  means_.resize(pass.pieces.size() * width);
  const float* q = pass.in.q_of_selected().on_host();
  for (size_t i = 0; i < pass.pieces.size(); ++i) {
    Piece& piece = pass.pieces[i];
    kernels::mean_of_rows(q + piece.q_begin * width, piece.n_q, width, means_.data() + i * width);
    piece.q_begin = static_cast<uint32_t>(i);
  }
  return {means_.data(), pass.pieces.size()};
}

// Heads of one list have equally many candidates: the query heads of a kv head, or all of them
// where they share.
Scores Scorer::lay_out(const std::vector<const Candidates*>& candidates) {
  const kvasir_geometry& g = c_.geometry;
  const auto offsets_of = [&](uint32_t n_heads, std::vector<uint64_t>& offsets) {
    offsets.assign(1, 0);
    for (const Candidates* candidate : candidates)
      for (uint32_t head = 0; head < n_heads; ++head)
        offsets.push_back(offsets.back() + candidate->count(head * g.n_kv_heads / n_heads));
  };
  n_given_ = sums() ? g.n_kv_heads : g.n_q_heads;
  offsets_of(n_given_, given_offsets_);
  Scores out;
  out.n_heads = g.head_select_shared ? 1 : g.n_kv_heads;
  offsets_of(out.n_heads, out.offsets);
  return out;
}

uint64_t Scorer::ask(const Pass& pass, const Queries& queries,
                     const std::vector<const Candidates*>& candidates, uint32_t n_best,
                     const kvasir_view& into) {
  const SlabOwner& owner = c_.owners[0];  // the representative's
  const StepBuilder step(c_, KVASIR_MOMENT_APPENDED, pass, KVASIR_UNIT_BLOCK, &owner, candidates);
  kvasir_score_in in{};
  in.struct_size = sizeof(in);
  in.flags = sums() ? KVASIR_SCORE_SUMMED : 0;
  in.n_best = n_best;
  Representative& representative = *c_.pipeline.representative;
  in.q = c_.store.bridge().to_reader(
      representative,
      queries.q.view_for(representative, c_.store.bridge(),
                         {queries.n, c_.geometry.n_q_heads, c_.geometry.head_dim}),
      q_hold_);
  kvasir_score_out result{sizeof(kvasir_score_out), 0, given_offsets_.data(), into, 0};
  representative.score(step.step(), in, result);
  return result.bytes_read;
}

void Scorer::check_finite(bool are) const {
  if (!are)
    throw PluginError(c_.pipeline.representative->id(), "score", KVASIR_ERR_INTERNAL,
                      "a score is not finite, or was not written (a defect of the plugin)");
}

void Scorer::bring_back(const kvasir_view& written, std::span<float> into) {
  if (is_host_memory(written.mem_kind)) return;  // they were checked where they come from
  const uint64_t n = written.shape[0];
  c_.store.bridge().from_writer(written, host_view(into.data(), KVASIR_DTYPE_F32, {n}), 0, n);
  check_finite(all_finite(into.data(), n));
}

void Scorer::reduce(Scores& out) const {
  const uint32_t group = n_given_ / out.n_heads;
  const auto rule = sums() ? ScoreRule::kSum : static_cast<ScoreRule>(c_.geometry.gqa_reduce);
  const auto reduce_lists = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i)
      kernels::reduce_scores(rule, given_.data() + given_offsets_[i * group], group,
                             out.offsets[i + 1] - out.offsets[i], c_.geometry.softmax_scale,
                             out.value.data() + out.offsets[i]);
  };
  const uint64_t n_lists = out.offsets.size() - 1;
  if (given_offsets_.back() < kManyScores)
    reduce_lists(0, n_lists, 0);
  else
    c_.pool.parallel_for(n_lists, 1, reduce_lists);
}

}  // namespace kvasir
