// Step structs for plugin calls; see step_builder.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_builder.h"

#include <algorithm>
#include <numeric>

namespace kvasir {

StepBuilder::StepBuilder(const RunContext& c, uint32_t moment, const Pass& pass, uint32_t unit,
                         const SlabOwner* owner, const std::vector<const Candidates*>& candidates,
                         uint32_t scope) {
  add_sequences(c, pass.pieces, unit, candidates);
  step_.struct_size = sizeof(step_);
  step_.moment = moment;
  step_.layer = pass.layer;
  step_.n_seqs = static_cast<uint32_t>(seqs_.size());
  step_.seq_size = sizeof(kvasir_step_seq);
  step_.seqs = seqs_.data();
  if (owner) {
    std::vector<const SlabPages*> pages;
    pages.reserve(pass.pieces.size());
    for (const Piece& piece : pass.pieces)
      pages.push_back(&piece.seq->layers[pass.layer].slabs[c.owner_index(owner)]);
    step_.slab = owner->slab.view(pages, slab_);
  }
  const bool listed = std::any_of(candidates.begin(), candidates.end(),
                                  [](const Candidates* candidate) { return candidate->listed; });
  if (listed) add_lists(c, unit, scope, candidates);
}

void StepBuilder::add_sequences(const RunContext& c, const std::vector<Piece>& pieces,
                                uint32_t unit, const std::vector<const Candidates*>& candidates) {
  const uint32_t per = unit == KVASIR_UNIT_BLOCK ? c.geometry.block_size : 1;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const Sequence& seq = *piece.seq;
    const ForcedRange forced = forced_range(
        c.cache, c.forced_unit(), piece.n_q ? piece.first_pos() + 1 : piece.kv_len, seq.prompt_end);
    uint32_t begin = forced.sink_end / per, end = forced.window_begin / per;
    if (i < candidates.size()) {
      begin = candidates[i]->begin;
      end = candidates[i]->end;
    }
    seqs_.push_back({seq.id, piece.q_begin, piece.n_q, piece.kv_len, seq.prompt_begin,
                     seq.prompt_end, begin, std::max(begin, end), piece.phase, piece.flags, 0});
  }
}

void StepBuilder::add_lists(const RunContext& c, uint32_t unit, uint32_t scope,
                            const std::vector<const Candidates*>& candidates) {
  const uint32_t heads = scope == KVASIR_SCOPE_SEQUENCE ? 1 : c.geometry.n_kv_heads;
  uint64_t total = 0;
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < heads; ++head) total += candidate->count(head);
  candidates_.prepare(unit, heads == 1 ? scope : KVASIR_SCOPE_KV_HEAD, 0,
                      static_cast<uint32_t>(candidates.size()) * heads, total, 0, false);
  uint32_t* to = candidates_.index.data();
  uint32_t n_lists = 0;
  candidates_.offsets[0] = 0;
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < heads; ++head, ++n_lists) {
      const uint64_t n = candidate->count(head);
      if (candidate->listed)
        std::copy_n(candidate->heads[head].index.data(), n, to);
      else
        std::iota(to, to + n, candidate->begin);
      to += n;
      candidates_.offsets[n_lists + 1] = candidates_.offsets[n_lists] + n;
    }
  candidates_.view.n_lists = n_lists;
  candidates_.view.log_weight = nullptr;
  step_.candidates = &candidates_.view;
}

void StepBuilder::without_queries() {
  for (kvasir_step_seq& seq : seqs_) seq.q_begin = seq.n_q = 0;
}

}  // namespace kvasir
