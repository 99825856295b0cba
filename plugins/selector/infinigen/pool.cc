// The pool: how often its tokens were used, and who goes when it is full.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plugins/selector/infinigen/infinigen.h"
#include "plugins/shared/layers.h"

namespace kvasir::infinigen {
namespace {

constexpr uint32_t kSaturated = UINT16_MAX;

}  // namespace

void InfiniGen::observe(const sdk::Step& step, const kvasir_mass& mass) {
  begin(step);
  for (uint32_t s = 0; s < step.n_seqs(); ++s) {
    const kvasir_step_seq& seq = step.seq(s);
    for (uint32_t kv_head = 0; kv_head < geometry_.n_kv_heads; ++kv_head) {
      auto& used = head(seq.id, step.layer(), kv_head).used;
      if (used.size() < seq.unit_end) {
        used.reserve(geometry_.max_context);
        used.resize(seq.unit_end);
      }
      const uint64_t* at = mass.list_offsets + uint64_t{s} * geometry_.n_kv_heads + kv_head;
      for (uint64_t i = at[0]; i < at[1]; ++i) {
        const uint32_t token = mass.index ? mass.index[i] : static_cast<uint32_t>(i - at[0]);
        if (token >= seq.unit_begin && token < seq.unit_end) hit(used, token, seq.kv_len);
      }
    }
  }
}

// Matrices and a fresh state for all, then of each sequence its sums, columns and counters.
uint64_t InfiniGen::state_bytes() const {
  uint64_t heads = 0;
  for (const Layer& layer : fresh_.layers) {
    for (const Head& head : layer.heads) {
      heads += sizeof(Head) + (head.q_sum.size() + head.k_sum.size() + head.recent.size()) * 8 +
               format_.n_columns * sizeof(uint16_t);
    }
  }
  uint64_t of_sequence = heads + fresh_.layers.size() * sizeof(Layer);
  if (o_.skew_tokens != 0) {
    of_sequence += uint64_t{format_.n_columns} * geometry_.head_dim * sizeof(float) *
                   geometry_.n_kv_heads * sdk::n_sparse_layers(geometry_);
  }
  if (o_.pool_limit != 0) {
    of_sequence += uint64_t{geometry_.max_context} * sizeof(uint32_t) * geometry_.n_kv_heads *
                   sdk::n_sparse_layers(geometry_);
  }
  return skew_.size() * sizeof(float) + heads + of_sequence * geometry_.max_sequences;
}

// The pool's victims: fewest hits, or longest not used; then the oldest. What is dead already is
// no candidate.
void InfiniGen::evict_plan(const sdk::Step& step, kvasir_selection& out) {
  begin(step);
  const uint32_t n_heads = geometry_.n_kv_heads;
  sdk::lay_out_lists(out, KVASIR_SCOPE_KV_HEAD, step.n_seqs() * n_heads, [&](uint32_t i) {
    const uint64_t n = step.candidates(i / n_heads, i % n_heads).size();
    return n > o_.pool_limit ? n - o_.pool_limit : 0;
  });
  host_.parallel_for(step.n_seqs() * n_heads, 1, [&](uint64_t list, uint64_t end, uint32_t worker) {
    for (; list < end; ++list) {
      const auto i = static_cast<uint32_t>(list);
      const sdk::Candidates from = candidates(step, i);
      const auto& used = head(step.seq(i / n_heads).id, step.layer(), i % n_heads).used;
      std::vector<float> rarity(from.size());
      for (uint64_t c = 0; c < from.size(); ++c) {
        rarity[c] = from[c] < used.size() ? -static_cast<float>(used[from[c]]) : 0.0f;
      }
      take_best(rarity.data(), from, sdk::list_indices(out, i), worker);
    }
  });
  out.flags |= KVASIR_SELECTION_DROP;
}

void InfiniGen::hit(std::vector<uint32_t>& used, uint32_t token, uint32_t kv_len) const {
  if (o_.policy == EvictionPolicy::kFifo) return;
  if (o_.policy == EvictionPolicy::kLru) {
    used[token] = kv_len;
  } else if (++used[token] >= kSaturated) {
    for (uint32_t& hits : used) hits /= 2;
  }
}

}  // namespace kvasir::infinigen
