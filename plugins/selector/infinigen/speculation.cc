// Scores of partial queries against partial keys, and which tokens they fetch.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/queries.h>

#include <algorithm>
#include <limits>

#include "kernels/topk.h"
#include "plugins/selector/infinigen/infinigen.h"
#include "plugins/shared/larger.h"

namespace kvasir::infinigen {
namespace {

constexpr uint32_t kChunk = 2048;  // candidates per task of scoring
constexpr uint32_t kRun =
    256;  // and per product: its scores stay in the cache until they are reduced

// Of no scores -inf; NaN is passed over. Several maxima at once: each waits for the one before.
float largest_of(const float* score, size_t n) {
  constexpr size_t kAtOnce = 32;
  float most[kAtOnce];
  std::fill_n(most, kAtOnce, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce)
    for (size_t lane = 0; lane < kAtOnce; ++lane)
      most[lane] = score[i + lane] > most[lane] ? score[i + lane] : most[lane];
  for (; i < n; ++i) most[0] = score[i] > most[0] ? score[i] : most[0];
  return *std::max_element(most, most + kAtOnce);
}

}  // namespace

kvasir_status InfiniGen::speculate(const sdk::Step& step, uint32_t target_layer,
                                   const kvasir_sel_in& in, kvasir_selection& out) {
  const kvasir_status status = choose_tokens(step, target_layer, in, out);
  if (status == KVASIR_OK) out.flags |= KVASIR_SELECTION_FINAL;
  return status;
}
// The layer's own query: where nothing was speculated, and in prefill.
kvasir_status InfiniGen::select(const sdk::Step& step, const kvasir_sel_in& in,
                                kvasir_selection& out) {
  return choose_tokens(step, step.layer(), in, out);
}

// Scores of all candidates, the number that all heads of a sequence share, the best of each head.
kvasir_status InfiniGen::choose_tokens(const sdk::Step& step, uint32_t layer,
                                       const kvasir_sel_in& in, kvasir_selection& out) {
  begin(step);
  const uint32_t n_heads = geometry_.n_kv_heads, n_lists = step.n_seqs() * n_heads;
  const auto q = sdk::Queries(in.q, geometry_.n_q_heads, geometry_.head_dim).pooled(step);
  offsets_.assign(1, 0);
  std::vector<ScoreTask> tasks;
  for (uint32_t i = 0; i < n_lists; ++i) {
    if (head(step.seq(i / n_heads).id, layer, i % n_heads).columns.empty()) return KVASIR_FALLBACK;
    const uint64_t n = candidates(step, i).size();
    offsets_.push_back(offsets_.back() + n);
    for (uint64_t at = 0; at < n; at += kChunk)
      tasks.push_back({i, offsets_[i] + at, offsets_[i] + std::min<uint64_t>(at + kChunk, n)});
  }
  scores_.resize(offsets_.back());
  host_.for_each(tasks.size(), [&](uint32_t t) {
    ScoreTask& task = tasks[t];
    task.n_read = score_chunk(step, layer, task, q.data());
    task.best = largest_of(scores_.data() + task.begin, task.end - task.begin);
  });
  const std::vector<uint32_t> counts = common_counts(step, tasks);
  sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_lists, [&](uint32_t i) {
    return std::min<uint64_t>(counts[i / n_heads], offsets_[i + 1] - offsets_[i]);
  });
  host_.parallel_for(n_lists, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    for (auto list = static_cast<uint32_t>(begin); list < end; ++list) {
      take_best(scores_.data() + offsets_[list], candidates(step, list),
                sdk::list_indices(out, list), worker);
    }
  });
  uint64_t n_read = 0;
  for (const ScoreTask& task : tasks) n_read += task.n_read;
  sdk::say_read(out, n_read);
  if (o_.refresh_every != 0) count_recent(step, layer, q.data());
  return KVASIR_OK;
}

uint64_t InfiniGen::score_chunk(const sdk::Step& step, uint32_t layer, const ScoreTask& task,
                                const float* q) {
  const uint32_t s = task.list / geometry_.n_kv_heads, kv_head = task.list % geometry_.n_kv_heads;
  const uint32_t group = group_size(), block_size = geometry_.block_size;
  const Head& of = head(step.seq(s).id, layer, kv_head);
  const auto& columns = of.columns;
  const bool in_prompt = step.seq(s).phase == KVASIR_PHASE_PREFILL;
  const uint32_t wanted = in_prompt ? n_prefill_ : n_decode_;
  const size_t n =
      o_.columns == ColumnScore::kUnion ? columns.size() : std::min<size_t>(wanted, columns.size());
  std::vector<float> partial(group * n), dots(uint64_t{group} * kRun), scratch;
  project(skew(of, layer, kv_head), {columns.data(), n},
          q + (uint64_t{s} * geometry_.n_q_heads + uint64_t{kv_head} * group) * geometry_.head_dim,
          group, partial.data(), scratch);
  // Keys of a block lie side by side, those of a page's blocks too where a record has no gap.
  const bool is_whole = step.raw().slab->record_bytes == block_size * format_.key_bytes();
  const uint32_t side_by_side = block_size * (is_whole ? step.raw().slab->page_blocks : 1);
  const sdk::Candidates from = step.candidates(s, kv_head);
  const uint64_t end = task.end - offsets_[task.list];
  uint64_t n_read = 0;
  for (uint64_t i = task.begin - offsets_[task.list], run; i < end; i += run) {
    const uint32_t token = from[i];
    const uint64_t most = std::min<uint64_t>({end - i, kRun, side_by_side - token % side_by_side});
    for (run = 1; run < most && from[i + run] == token + run;) ++run;
    float* out = scores_.data() + offsets_[task.list] + i;
    const std::byte* record = step.record(s, kv_head, token / block_size);
    if (!record) {
      run = std::min<uint64_t>(run, block_size - token % block_size);
      std::fill_n(out, run, -std::numeric_limits<float>::infinity());
      continue;
    }
    score_keys(format_, partial.data(), group, n, record + token % block_size * format_.key_bytes(),
               run, dots.data(), kRun, scratch);
    n_read += run;
    reduce(dots.data(), kRun, run, out);
  }
  return n_read * format_.bytes_read(n);
}

// One score per token of what the group's heads give it, one head after the other.
//   dots [group][stride], out [n]
void InfiniGen::reduce(const float* dots, uint64_t stride, uint64_t n, float* out) const {
  std::copy_n(dots, n, out);
  for (uint32_t g = 1; g < group_size(); ++g) {
    const float* other = dots + g * stride;
    if (o_.reduce == GroupReduce::kMax) {
      for (uint64_t t = 0; t < n; ++t) out[t] = sdk::larger_or_nan(out[t], other[t]);
    } else {
      for (uint64_t t = 0; t < n; ++t) out[t] += other[t];
    }
  }
  const float n_heads = o_.reduce == GroupReduce::kMean ? static_cast<float>(group_size()) : 1.0f;
  for (uint64_t t = 0; t < n; ++t) out[t] = out[t] / n_heads * geometry_.softmax_scale;
}

// n' of each sequence: how many tokens a head has on average within alpha of its best.
std::vector<uint32_t> InfiniGen::common_counts(const sdk::Step& step,
                                               std::vector<ScoreTask>& tasks) const {
  std::vector<float> best(offsets_.size() - 1, -std::numeric_limits<float>::infinity());
  for (const ScoreTask& task : tasks) best[task.list] = std::max(best[task.list], task.best);
  host_.for_each(tasks.size(), [&](uint32_t t) {
    ScoreTask& task = tasks[t];
    const float threshold = best[task.list] - o_.alpha;
    uint32_t n = 0;  // as wide as a score: counted a vector at a time
    for (uint64_t i = task.begin; i < task.end; ++i) n += scores_[i] > threshold ? 1 : 0;
    task.n_near = n;
  });
  std::vector<uint64_t> total(step.n_seqs());
  for (const ScoreTask& task : tasks) total[task.list / geometry_.n_kv_heads] += task.n_near;
  std::vector<uint32_t> counts;
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const uint64_t cap = o_.budget > 0 ? share(step.seq(s).kv_len) : o_.budget_tokens;
    const uint64_t n = std::min<uint64_t>(total[s] / geometry_.n_kv_heads, cap);
    counts.push_back(static_cast<uint32_t>(std::max<uint64_t>(n, 1)));
  }
  return counts;
}

void InfiniGen::take_best(const float* scores, const sdk::Candidates& from,
                          std::span<uint32_t> list, uint32_t worker) const {
  const sdk::Scratch<uint64_t> scratch(
      host_, worker, kernels::top_k_scratch_bytes(from.size()) / sizeof(uint64_t));
  kernels::top_k(scores, from.size(), list.size(), list.data(), scratch.data());
  for (uint32_t& index : list) index = from[index];
}

}  // namespace kvasir::infinigen
