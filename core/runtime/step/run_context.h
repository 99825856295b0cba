// What the stages of the step loop share: the plugins of the run, the geometry, the batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/blocks/block_store.h"
#include "core/runtime/select/index_lists.h"
#include "core/runtime/sequence/sequence.h"
#include "core/runtime/sequence/slab.h"
#include "core/runtime/step/engagement.h"

namespace kvasir {

// Who keeps records in slabs: the representative, or a selector with a layout.
struct SlabOwner {
  Representative* representative = nullptr;
  Selector* selector = nullptr;
  RecordLayout layout{};
  SlabLayout slab;
  uint32_t unit() const {
    return selector ? selector->limits().unit : static_cast<uint32_t>(KVASIR_UNIT_BLOCK);
  }
  kvasir_status update(const kvasir_step& step, const std::vector<kvasir_update_item>& items) {
    return selector ? selector->update(step, items) : representative->update(step, items);
  }
};

struct RunContext {
  const Model& model;
  Pipeline& pipeline;
  BlockStore& store;
  MemoryBridge* window_bridge = nullptr;  // hybrid mode: to where the window's backend works
  HostServices& services;
  ThreadPool& pool;
  const CacheConfig& cache;
  kvasir_geometry geometry;
  bool check_numerics = false;
  std::function<void(uint32_t, uint64_t, uint32_t, std::span<const uint32_t>)> on_attend;
  std::vector<SlabOwner> owners{};
  std::vector<uint32_t> group_leader{};  // [layer] whose selection it uses; itself when it leads
  std::vector<bool> dense_layer{};
  Engagement prefill{}, decode{};
  bool latest_prefilled = false;       // what the storage moves between steps counts there
  std::vector<uint32_t> faults{};      // per selector; put aside at kMaxFaults
  bool representative_failed = false;  // its records are incomplete from then on

  static constexpr uint32_t kMaxFaults = 3;
  bool aside(size_t selector) const { return faults[selector] >= kMaxFaults; }
  Engagement& counters(bool in_prefill) { return in_prefill ? prefill : decode; }
  size_t index_of(const Selector& selector) const;
  // A fault of a selector: counted, logged with what is done instead, put aside when it was one too
  // many. Throws PluginError when the strategy says on_fault = fail.
  void report_fault(size_t selector, const std::string& function, uint32_t layer, uint64_t seq,
                    const std::string& text, const std::string& instead);
  // The representative cannot go on: so cannot the selectors that live on its scores.
  void report_representative_fault(const PluginError& error);
  uint32_t group_size() const { return geometry.n_q_heads / geometry.n_kv_heads; }
  const SlabOwner* owner_of(const Selector* selector) const {
    for (const SlabOwner& owner : owners)
      if (owner.selector == selector) return &owner;
    return nullptr;
  }
  size_t owner_index(const SlabOwner* owner) const {
    return static_cast<size_t>(owner - owners.data());
  }
  // Unit whose boundaries the forced part is rounded to: blocks as soon as one selector works so.
  uint32_t forced_unit() const {
    for (const auto& selector : pipeline.selectors)
      if (selector->limits().unit == KVASIR_UNIT_TOKEN && pipeline.selectors.size() == 1)
        return KVASIR_UNIT_TOKEN;
    return KVASIR_UNIT_BLOCK;
  }
};

// One sequence of a call: queries [q_begin, q_begin + n_q) of the step's rows.
struct Piece {
  Sequence* seq = nullptr;
  uint32_t q_begin = 0, n_q = 0;
  uint32_t kv_len = 0;  // tokens cached, those of this call included
  uint32_t phase = KVASIR_PHASE_NONE;
  uint32_t flags = 0;     // KVASIR_STEP_*
  uint32_t place = 0;     // among the rows that the layer attends together
  uint32_t n_places = 1;  // from place on: rows that its queries were divided into
  bool drafts = false;    // decodes n_q tokens one after another, to be verified
  uint32_t first_pos() const { return kv_len - n_q; }
  bool prefills() const { return phase == KVASIR_PHASE_PREFILL; }
  bool decodes() const { return phase == KVASIR_PHASE_DECODE; }
};

// Runs fn; what it throws ends the row's sequence and nobody else's. False when it threw.
template <class Fn>
bool guard_piece(const Piece& piece, Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const std::exception&) {
    piece.seq->fail(std::current_exception());
    return false;
  }
}
// Those whose sequences have not failed.
std::vector<Piece> living(const std::vector<Piece>& pieces);

// Builds a kvasir_step; owns what it points to.
class StepBuilder {
 public:
  // owner: whose slab it carries, or null. candidates: per row, or empty for ranges only; with
  // scope SEQUENCE the heads' lists must be equal.
  StepBuilder(const RunContext& context, uint32_t moment, uint32_t layer,
              const std::vector<Piece>& pieces, uint32_t unit, const SlabOwner* owner,
              const std::vector<const Candidates*>& candidates = {},
              uint32_t scope = KVASIR_SCOPE_KV_HEAD);
  const kvasir_step& step() const { return step_; }
  void without_queries();  // the call has no query view: rows say n_q = 0

 private:
  kvasir_step step_{};
  std::vector<kvasir_step_seq> seqs_;
  SlabLayout::Buffers slab_;
  ListBuffer candidates_;
};

// [rows][heads][dim] f32 over contiguous memory.
kvasir_view view_f32(const float* data, uint64_t rows, uint64_t heads, uint64_t dim);
// [rows][width], likewise.
kvasir_view view_f32(const float* data, uint64_t rows, uint64_t width);

// Calls and nanoseconds inside plugins so far, over all instances of the run.
CallStats plugin_totals(const Pipeline& pipeline);

}  // namespace kvasir
