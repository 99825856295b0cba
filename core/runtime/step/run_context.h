// What the stages of a strategy share. Nothing in it changes once the strategy is bound; what it
// refers to does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/blocks/block_store.h"
#include "core/runtime/step/engagement.h"
#include "core/runtime/step/fault_log.h"
#include "core/runtime/step/slab_owner.h"

namespace kvasir {

struct RunContext {
  const Model& model;
  Pipeline& pipeline;
  BlockStore& store;
  MemoryBridge* window_bridge = nullptr;  // hybrid mode: to where the window's backend works
  bool prompts_by_window = false;         // as in Binding
  bool lists_stay = false;                // likewise
  ThreadPool& pool;
  FaultLog& faults;
  Counters& counters;
  const CacheConfig& cache;
  kvasir_geometry geometry;
  std::function<uint64_t()> model_hash;  // EngineOptions
  std::function<void(uint32_t, uint64_t, uint32_t, std::span<const uint32_t>)> on_attend;
  std::vector<SlabOwner> owners{};
  std::vector<uint32_t> group_leader{};  // [layer] whose selection it uses; itself when it leads
  std::vector<bool> dense_layer{};

  uint32_t sliding_window(uint32_t layer) const {  // tokens, 0: none
    return geometry.sliding_windows ? geometry.sliding_windows[layer] : 0;
  }
  bool selects_in_prefill() const;  // a selector chooses for prompts, too
  // Whether the storage is to be told the attention mass of blocks (kvasir.block-heat/1), of layers
  // that are not dense.
  bool heats_by_mass(bool prefills) const;
  uint32_t group_size() const { return geometry.n_q_heads / geometry.n_kv_heads; }
  size_t index_of(const Selector& selector) const;
  const SlabOwner* owner_of(const Selector* selector) const;
  size_t owner_index(const SlabOwner* owner) const {
    return static_cast<size_t>(owner - owners.data());
  }
  // Unit whose boundaries the forced part is rounded to: blocks as soon as one selector works so.
  uint32_t forced_unit() const;
};

}  // namespace kvasir
