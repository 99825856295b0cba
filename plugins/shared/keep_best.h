// What evict_plan() writes when the best of each list's candidates stay. For plugins that link
// kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/host.h>
#include <kvasir/sdk/selection.h>
#include <kvasir/sdk/step.h>

#include <algorithm>
#include <cstdint>

#include "kernels/topk.h"

namespace kvasir::sdk {

enum class PlanList { kKept, kLost };  // what the lists name; kLost is shorter when little changes

namespace detail {

// Place of the one that is lost when all others stay. A step evicts one token of each head: one
// walk.
inline uint32_t worst_of(const float* score, size_t n) {
  uint32_t worst = 0;
  for (uint32_t i = 1; i < n; ++i) {
    const bool is_worse =
        score[worst] != score[worst] ? score[i] != score[i] : !(score[i] > score[worst]);
    if (is_worse) worst = i;
  }
  return worst;
}

// Best `n_kept` of n scores, ascending places, into `kept`; the others into `lost` when not null.
inline void split_best(const float* score, size_t n, size_t n_kept, uint32_t* kept, uint32_t* lost,
                       void* scratch) {
  kernels::top_k(score, n, n_kept, kept, scratch);
  if (!lost) return;
  for (uint32_t i = 0, at = 0; i < n; ++i) {
    if (at < n_kept && kept[at] == i) {
      ++at;
    } else {
      *lost++ = i;
    }
  }
}

}  // namespace detail

// Lists of scope SEQUENCE (n_heads = 1) or KV_HEAD, n_heads per sequence. List i speaks of sequence
// i / n_heads and head i % n_heads:
//   count(i, from) -> uint64_t       how many of its candidates stay
//   score(i, from, float* out)       one score per candidate; on several threads at once
// Higher score first, then lower index; NaN last. A list that loses nothing lists nothing.
template <class Count, class Score>
void keep_best(const Host& host, const Step& step, uint32_t n_heads, PlanList what, Count&& count,
               Score&& score, kvasir_selection& out) {
  const auto candidates = [&](uint32_t i) { return step.candidates(i / n_heads, i % n_heads); };
  const uint32_t n_lists = step.n_seqs() * n_heads;
  const auto n_listed = [&](uint32_t i) -> uint64_t {
    const Candidates from = candidates(i);
    const uint64_t n_kept = count(i, from);
    if (n_kept >= from.size()) return 0;
    return what == PlanList::kKept ? n_kept : from.size() - n_kept;
  };
  lay_out_lists(out, n_heads == 1 ? KVASIR_SCOPE_SEQUENCE : KVASIR_SCOPE_KV_HEAD, n_lists,
                n_listed);
  if (what == PlanList::kLost) out.flags |= KVASIR_SELECTION_DROP;
  host.parallel_for(n_lists, 1, [&](uint64_t begin, uint64_t end, uint32_t worker) {
    for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
      const Candidates from = candidates(i);
      const uint64_t n = from.size(), n_kept = count(i, from);
      if (n_kept >= n) {
        out.list_flags[i] = what == PlanList::kKept ? KVASIR_LIST_ALL : KVASIR_LIST_NONE;
        continue;
      }
      const std::span<uint32_t> written = list_indices(out, i);
      const size_t top_k_words = kernels::top_k_scratch_bytes(n) / sizeof(uint64_t);
      const Scratch<uint64_t> scratch(host, worker, top_k_words + n);
      auto* scores = reinterpret_cast<float*>(scratch.data() + top_k_words);
      auto* places = reinterpret_cast<uint32_t*>(scores + n);
      score(i, from, scores);
      if (what == PlanList::kLost && n - n_kept == 1) {
        written[0] = detail::worst_of(scores, n);
      } else if (what == PlanList::kKept) {
        detail::split_best(scores, n, n_kept, written.data(), nullptr, scratch.data());
      } else {
        detail::split_best(scores, n, n_kept, places, written.data(), scratch.data());
      }
      for (uint32_t& index : written) index = from[index];
    }
  });
}

}  // namespace kvasir::sdk
