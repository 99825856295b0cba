// Beginning, narrowing and finishing a choice; see choice.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/choice.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/runtime/select/ascending.h"

namespace kvasir {
namespace {

// Weight w of index i; what has one weight per index has it for every query head, what has none 0.
float weight_of(const HeadSelection& head, uint32_t width, size_t i, uint32_t w) {
  return width ? head.weight[i * width + (width == 1 ? 0 : w)] : 0.0f;
}

// The part of `chosen` that `before` holds, with out_width weights per index, the sums of both's.
// Both ascend: one walk along each.
HeadSelection among(const HeadSelection& before, uint32_t before_width, const HeadSelection& chosen,
                    uint32_t width, uint32_t out_width) {
  HeadSelection kept;
  kept.index.reserve(chosen.index.size());
  kept.weight.reserve(chosen.index.size() * out_width);
  const uint32_t* const begin = before.index.data();
  const uint32_t* const end = begin + before.index.size();
  const uint32_t* at = begin;
  for (size_t i = 0; i < chosen.index.size(); ++i) {
    at = advance_to(at, end, chosen.index[i]);
    if (at == end) break;
    if (*at != chosen.index[i]) continue;
    kept.index.push_back(chosen.index[i]);
    for (uint32_t w = 0; w < out_width; ++w)
      kept.weight.push_back(weight_of(chosen, width, i, w) +
                            weight_of(before, before_width, static_cast<size_t>(at - begin), w));
  }
  return kept;
}

}  // namespace

Choice Choice::begin(const RunContext& c, uint32_t layer, const Piece& piece, LayerSelection& out) {
  const ForcedRange forced =
      forced_range(c.cache, c.forced_unit(), piece.first_pos() + 1, piece.seq->prompt_end);
  out = {};
  out.sink_end = forced.sink_end;
  out.window_begin = forced.window_begin;
  out.made_at = piece.seq->decode_index;
  const SelectorLimits& limits = c.pipeline.selectors[0]->limits();
  Choice choice;
  choice.piece = piece;
  choice.out = &out;
  choice.candidates = live_candidates(piece.seq->layers[layer], limits.unit, forced,
                                      c.geometry.block_size, c.geometry.n_kv_heads);
  if (limits.scope == KVASIR_SCOPE_SEQUENCE || c.geometry.head_select_shared)
    share_candidates(choice.candidates);
  return choice;
}

bool Choice::is_covered_by(const SelectorLimits& limits) const {
  const uint64_t most = candidates.max_count();
  return most == 0 || (limits.max_units && most <= limits.max_units) ||
         piece.kv_len < limits.dense_below_tokens;
}

void Choice::narrow(std::vector<HeadSelection>&& heads, uint32_t heads_width, uint32_t n_kv_heads) {
  Candidates next;
  next.unit = candidates.unit;
  next.begin = candidates.begin;
  next.end = candidates.end;
  next.listed = true;
  const uint32_t out_width = std::max(heads_width, width);
  for (uint32_t head = 0; head < n_kv_heads; ++head) {
    HeadSelection chosen = heads.size() == 1 ? heads[0] : std::move(heads[head]);
    if (chosen.all) {
      chosen.all = false;
      chosen.index = candidates.units_of(head);
      chosen.weight.assign(chosen.index.size() * heads_width, 0.0f);
    }
    // A list for all heads may name what only another head may reach.
    if (candidates.listed)
      chosen = among(candidates.heads[head], width, chosen, heads_width, out_width);
    next.heads.push_back(std::move(chosen));
  }
  width = out_width;
  candidates = std::move(next);
}

void Choice::finish(Engagement& counters) {
  out->valid = true;
  out->unchosen = bypassed;
  if (bypassed) ++counters.bypassed;
  out->unit = candidates.unit;
  out->width = width;
  out->reuse_steps = reuse_steps;
  out->contributed = contributed;
  out->dense = failed || !candidates.listed;
  if (out->dense) return;
  out->heads = std::move(candidates.heads);
  out->standing = std::move(standing);
}

}  // namespace kvasir
