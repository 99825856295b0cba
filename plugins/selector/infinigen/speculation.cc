// Scores of partial queries against partial keys, and which tokens they fetch.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/queries.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/topk.h"
#include "plugins/selector/infinigen/infinigen.h"
#include "plugins/shared/larger.h"

namespace kvasir::infinigen {
namespace {

constexpr uint32_t kChunk = 4096;  // candidates per task of scoring

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
  std::vector<std::pair<uint32_t, uint64_t>> tasks;  // list, first candidate
  for (uint32_t i = 0; i < n_lists; ++i) {
    if (head(step.seq(i / n_heads).id, layer, i % n_heads).columns.empty()) return KVASIR_FALLBACK;
    const uint64_t n = candidates(step, i).size();
    offsets_.push_back(offsets_.back() + n);
    for (uint64_t at = 0; at < n; at += kChunk) tasks.emplace_back(i, at);
  }
  scores_.resize(offsets_.back());
  std::vector<uint64_t> read(tasks.size());
  host_.for_each(tasks.size(), [&](uint32_t t) {
    read[t] = score_chunk(step, layer, tasks[t].first, tasks[t].second, q.data());
  });
  std::vector<uint32_t> counts;
  for (uint32_t s = 0; s < step.n_seqs(); ++s) counts.push_back(common_count(step, s));
  sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, n_lists, [&](uint32_t i) {
    return std::min<uint64_t>(counts[i / n_heads], offsets_[i + 1] - offsets_[i]);
  });
  each_head(step, [&](uint32_t s, uint32_t kv_head) {
    const uint32_t list = s * n_heads + kv_head;
    take_best(scores_.data() + offsets_[list], candidates(step, list),
              sdk::list_indices(out, list));
  });
  sdk::say_read(out, std::accumulate(read.begin(), read.end(), uint64_t{0}));
  if (o_.refresh_every != 0) count_recent(step, layer, q.data());
  return KVASIR_OK;
}

uint64_t InfiniGen::score_chunk(const sdk::Step& step, uint32_t layer, uint32_t list,
                                uint64_t begin, const float* q) {
  const uint32_t s = list / geometry_.n_kv_heads, kv_head = list % geometry_.n_kv_heads;
  const uint32_t group = group_size(), block_size = geometry_.block_size;
  const Head& of = head(step.seq(s).id, layer, kv_head);
  const auto& columns = of.columns;
  const bool in_prompt = step.seq(s).phase == KVASIR_PHASE_PREFILL;
  const uint32_t wanted = in_prompt ? n_prefill_ : n_decode_;
  const size_t n =
      o_.columns == ColumnScore::kUnion ? columns.size() : std::min<size_t>(wanted, columns.size());
  std::vector<float> partial(group * n), dots(uint64_t{group} * block_size), scratch;
  project(skew(of, layer, kv_head), {columns.data(), n},
          q + (uint64_t{s} * geometry_.n_q_heads + uint64_t{kv_head} * group) * geometry_.head_dim,
          group, partial.data(), scratch);
  const sdk::Candidates from = step.candidates(s, kv_head);
  const uint64_t end = std::min<uint64_t>(begin + kChunk, from.size());
  uint64_t n_read = 0;
  for (uint64_t i = begin, run; i < end; i += run) {  // runs of neighbours inside a block
    const uint32_t token = from[i];
    run = 1;
    while (i + run < end && from[i + run] == token + run && (token + run) % block_size != 0) ++run;
    float* out = scores_.data() + offsets_[list] + i;
    const std::byte* record = step.record(s, kv_head, token / block_size);
    if (!record) {
      std::fill_n(out, run, -std::numeric_limits<float>::infinity());
      continue;
    }
    score_keys(format_, partial.data(), group, n, record + token % block_size * format_.key_bytes(),
               run, dots.data(), block_size, scratch);
    n_read += run;
    reduce(dots.data(), block_size, run, out);
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

// n' of one sequence: how many tokens a head has on average within alpha of its best.
uint32_t InfiniGen::common_count(const sdk::Step& step, uint32_t s) const {
  uint64_t total = 0;
  for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
    const uint32_t list = s * geometry_.n_kv_heads + kv_head;
    const float* begin = scores_.data() + offsets_[list];
    const float* end = scores_.data() + offsets_[list + 1];
    float best = -std::numeric_limits<float>::infinity();
    for (const float* at = begin; at != end; ++at) best = *at > best ? *at : best;
    const float threshold = best - o_.alpha;
    total += static_cast<uint64_t>(
        std::count_if(begin, end, [&](float score) { return score > threshold; }));
  }
  const uint64_t cap = o_.budget > 0 ? share(step.seq(s).kv_len) : o_.budget_tokens;
  const uint64_t n = std::min<uint64_t>(total / geometry_.n_kv_heads, cap);
  return static_cast<uint32_t>(std::max<uint64_t>(n, 1));
}

void InfiniGen::take_best(const float* scores, const sdk::Candidates& from,
                          std::span<uint32_t> list) const {
  std::vector<uint64_t> scratch(kernels::top_k_scratch_bytes(from.size()) / 8 + 1);
  kernels::top_k(scores, from.size(), list.size(), list.data(), scratch.data());
  for (uint32_t& index : list) index = from[index];
}

}  // namespace kvasir::infinigen
