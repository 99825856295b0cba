// Step structs and views for plugin calls.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/run_context.h"

namespace kvasir {

std::vector<Piece> living(const std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  for (const Piece& piece : pieces)
    if (!piece.seq->fault) out.push_back(piece);
  return out;
}

StepBuilder::StepBuilder(const RunContext& c, uint32_t moment, uint32_t layer,
                         const std::vector<Piece>& pieces, uint32_t unit, const SlabOwner* owner,
                         const std::vector<const Candidates*>& candidates, uint32_t scope) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const ForcedRange forced =
        forced_range(c.cache, c.forced_unit(), piece.n_q ? piece.first_pos() + 1 : piece.kv_len,
                     piece.seq->prompt_end);
    const uint32_t per = unit == KVASIR_UNIT_BLOCK ? c.geometry.block_size : 1;
    uint32_t begin = forced.sink_end / per, end = forced.window_begin / per;
    if (i < candidates.size()) {
      begin = candidates[i]->begin;
      end = candidates[i]->end;
    }
    seqs_.push_back({piece.seq->id, piece.q_begin, piece.n_q, piece.kv_len, piece.seq->prompt_begin,
                     piece.seq->prompt_end, begin, std::max(begin, end), piece.phase, piece.flags,
                     0});
  }
  step_.struct_size = sizeof(step_);
  step_.moment = moment;
  step_.layer = layer;
  step_.n_seqs = static_cast<uint32_t>(seqs_.size());
  step_.seq_size = sizeof(kvasir_step_seq);
  step_.seqs = seqs_.data();
  if (owner) {
    std::vector<const SlabPages*> pages;
    pages.reserve(pieces.size());
    for (const Piece& piece : pieces)
      pages.push_back(&piece.seq->layers[layer].slabs[c.owner_index(owner)]);
    step_.slab = owner->slab.view(pages, slab_);
  }
  bool listed = false;
  for (const Candidates* candidate : candidates) listed = listed || candidate->listed;
  if (!listed) return;
  const uint32_t heads = scope == KVASIR_SCOPE_SEQUENCE ? 1 : c.geometry.n_kv_heads;
  uint64_t total = 0;
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < heads; ++head) total += candidate->count(head);
  candidates_.prepare(unit, heads == 1 ? scope : KVASIR_SCOPE_KV_HEAD, 0,
                      static_cast<uint32_t>(candidates.size()) * heads, total, 0);
  uint64_t at = 0;
  uint32_t out_row = 0;
  for (const Candidates* candidate : candidates)
    for (uint32_t head = 0; head < heads; ++head) {
      if (candidate->listed) {
        for (const uint32_t u : candidate->heads[head].index) candidates_.index[at++] = u;
      } else {
        for (uint32_t u = candidate->begin; u < candidate->end; ++u) candidates_.index[at++] = u;
      }
      candidates_.offsets[++out_row] = at;
    }
  candidates_.view.n_lists = out_row;
  candidates_.view.log_weight = nullptr;
  step_.candidates = &candidates_.view;
}

void StepBuilder::without_queries() {
  for (kvasir_step_seq& seq : seqs_) seq.q_begin = seq.n_q = 0;
}

size_t RunContext::index_of(const Selector& selector) const {
  size_t index = 0;
  while (pipeline.selectors[index].get() != &selector) ++index;
  return index;
}

void RunContext::report_fault(size_t selector, const std::string& function, uint32_t layer,
                              uint64_t seq, const std::string& text, const std::string& instead) {
  const std::string id = pipeline.selectors[selector]->id();
  if (cache.on_fault.value == OnFault::kFail)
    throw PluginError(id, function, KVASIR_ERR_INTERNAL,
                      "layer " + std::to_string(layer) + ": " + text);
  ++faults[selector];
  services.log(KVASIR_LOG_ERROR, id,
               function + ", layer " + std::to_string(layer) + ", sequence " + std::to_string(seq) +
                   ": " + text +
                   (faults[selector] == kMaxFaults
                        ? "; put aside after repeated faults: attending densely from here on"
                        : "; " + instead));
}

void RunContext::report_representative_fault(const PluginError& error) {
  if (cache.on_fault.value == OnFault::kFail) throw error;
  representative_failed = true;
  for (size_t i = 0; i < pipeline.selectors.size(); ++i)
    if (pipeline.selectors[i]->desc().needs & KVASIR_NEED_SCORES) faults[i] = kMaxFaults;
  services.log(KVASIR_LOG_ERROR, error.plugin(),
               std::string(error.what()) +
                   "; put aside with the selectors that need it: attending densely from here on");
}

kvasir_view view_f32(const float* data, uint64_t rows, uint64_t heads, uint64_t dim) {
  kvasir_view view{};
  view.struct_size = sizeof(view);
  view.dtype = KVASIR_DTYPE_F32;
  view.data = const_cast<float*>(data);  // NOLINT: plugins read it only
  view.mem_kind = KVASIR_MEM_HOST;
  view.rank = 3;
  view.shape[0] = rows;
  view.shape[1] = heads;
  view.shape[2] = dim;
  view.stride[2] = sizeof(float);
  view.stride[1] = static_cast<int64_t>(dim * sizeof(float));
  view.stride[0] = static_cast<int64_t>(heads * dim * sizeof(float));
  return view;
}

kvasir_view view_f32(const float* data, uint64_t rows, uint64_t width) {
  kvasir_view view = view_f32(data, 1, rows, width);
  view.rank = 2;
  for (int i = 0; i < 2; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.stride[i] = view.stride[i + 1];
  }
  view.shape[2] = 0;
  view.stride[2] = 0;
  return view;
}

CallStats plugin_totals(const Pipeline& pipeline) {
  CallStats total;
  const auto add = [&](const Instance* instance) {
    if (!instance) return;
    total.calls += instance->stats().calls;
    total.nanos += instance->stats().nanos;
  };
  for (const auto& selector : pipeline.selectors) add(selector.get());
  add(pipeline.representative.get());
  add(pipeline.storage.get());
  add(pipeline.attention.get());
  add(pipeline.window_storage.get());
  add(pipeline.window_attention.get());
  return total;
}

}  // namespace kvasir
