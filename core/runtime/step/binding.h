// A pipeline bound to the shape of a model: what its plugins are told, what they answer, and every
// check that needs the answers. One place for the engine and for all that speaks before a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/memory_bytes.h"

namespace kvasir {

struct EngineOptions;

struct Binding {
  kvasir_geometry geometry{};
  std::vector<uint64_t> dense_bits;       // geometry.dense_layers
  std::vector<uint32_t> sliding_windows;  // geometry.sliding_windows, or empty
  // The storage's, then its f32 copies of rotated keys, or, in hybrid mode, the window storage's.
  std::vector<kvasir_kv_format> formats;
  // What plugins are told whose update() is given copies of blocks, by copied_formats().
  std::vector<kvasir_kv_format> copied_formats;
  kvasir_geometry copied_geometry{};
  kvasir_storage_plan storage{};
  // Hybrid mode: the two backends are told the formats of their own storage only, but for the
  // window's where it attends prompts to the context: that one is told all.
  bool prompts_by_window = false;
  kvasir_geometry context_geometry{}, window_geometry{};
  kvasir_storage_plan window_storage{};
  MemoryBytes attention_scratch;    // of max_queries over max_context
  bool lists_stay = false;          // lists_can_stay() of decoded tokens
  bool constant_positions = false;  // some selector sets KVASIR_POS_CONSTANT

  bool is_dense(uint32_t layer) const { return dense_bits[layer / 64] >> (layer % 64) & 1; }
  // Layers in which something is chosen; those with a sliding window; the others are attended in
  // full.
  uint32_t n_sparse_layers() const;
  uint32_t n_sliding_layers() const;
};

// Validates, binds and asks storage, attention, representative and selectors, in this order; only
// the sizes, seed and model_hash of `options` matter. may_round: as Model says. The pipeline keeps
// it, too: plugins point into it until they are destroyed. A storage or backend that is bound
// already, because the pipeline shares it, is only asked. Throws Error(kInput) for plugins that do
// not fit each other, the strategy or the shape, PluginError for what a plugin refuses.
std::shared_ptr<const Binding> bind_pipeline(const ModelShape& shape, bool may_round,
                                             Pipeline& pipeline, const EngineOptions& options);

// Whether share_plugins() would take the storage of `from`.
bool can_share(const Pipeline& pipeline, const Pipeline& from);

// Takes storage and backend of `from`, which is bound, where `pipeline` has the same plugins with
// the same options and the blocks of both are alike (size, key rotation). True when it took the
// storage.
bool share_plugins(Pipeline& pipeline, const Pipeline& from);

}  // namespace kvasir
