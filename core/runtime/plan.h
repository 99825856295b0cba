// Memory of a run before anything loads: bytes per part and tier, tokens attended per step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/layers/model.h"
#include "core/plugin/pipeline.h"
#include "core/runtime/engine.h"

namespace kvasir {

// Resident bytes of the program and its shared libraries, measured on Debian 12.
constexpr uint64_t kProcessBytes = uint64_t{48} << 20;

struct MemoryPlan {
  uint64_t kv_bytes = 0;           // K and V of max_context tokens x max_sequences, all layers
  uint64_t kv_slow_bytes = 0;      // of them, what is never in the fastest tier at once
  uint64_t kv_window_bytes = 0;    // hybrid mode: K and V in the window's storage, of all sequences
  uint64_t kv_packed_bytes = 0;    // what evictions leave, packed while the whole prompt is there
  uint64_t kv_overhead_bytes = 0;  // the storages' fixed part
  uint64_t record_bytes = 0;       // slabs of representative and selectors
  uint64_t state_bytes = 0;        // their own memory, as they state it: what stays,
  uint64_t state_peak_bytes = 0;   // and the most at once
  uint64_t weight_bytes = 0;       // as resident after load
  uint64_t model_scratch_bytes = 0;
  uint64_t activation_bytes = 0;  // of the largest chunk, logits included
  // Of the backend, copies of keys that are rotated late, and of a device's blocks for update().
  uint64_t attention_scratch_bytes = 0;
  uint64_t process_bytes = 0;  // program, libraries, tokenizer: a measured constant
  // In the memory of a device, not in total(): of layers, of backends that work there, and what
  // storages and slabs there hold of sequences (also part of the numbers above).
  uint64_t device_weight_bytes = 0, device_scratch_bytes = 0, device_sequence_bytes = 0;
  uint64_t device_attention_bytes = 0;
  uint64_t device_bytes() const {
    return device_weight_bytes + device_scratch_bytes + device_sequence_bytes +
           device_attention_bytes;
  }
  uint64_t total() const {
    return sequence_bytes() + kv_overhead_bytes + weight_bytes + model_scratch_bytes +
           activation_bytes + attention_scratch_bytes + process_bytes;
  }
  uint64_t sequence_bytes() const {  // of all sequences, in main memory
    return kv_bytes - kv_slow_bytes + kv_window_bytes + kv_packed_bytes + record_bytes +
           state_peak_bytes - device_sequence_bytes;
  }
  void add_state(uint64_t stays, uint64_t peak) {  // of one plugin; peak 0: no more than stays
    state_bytes += stays;
    state_peak_bytes += peak > stays ? peak : stays;
  }
  // Attended per layer, kv head and decode step at max_context.
  uint64_t sink_tokens = 0, window_tokens = 0, selected_tokens = 0, attended_tokens = 0;
  uint32_t n_dense_layers = 0;    // attended in full
  uint32_t n_sliding_layers = 0;  // of the model's own shape, with a window
  uint64_t sliding_tokens = 0;    // attended by them at max_context, per kv head, of all together
  bool attends_all = false;       // no selector sets a limit: selected_tokens is all there is
  struct Budget {                 // of one selector, beyond sink and window
    std::string selector;         // id
    bool limited = false;         // false: all candidates, or as many as the queries say
    bool of_context = false;  // tokens is what max_context makes it, a mean over layers and heads
    uint64_t tokens = 0;      // most per layer, kv head and step
  };
  std::vector<Budget> budgets;
  std::string prompts_by;          // hybrid mode: id of who attends prompts to the context
  uint64_t kv_bytes_per_step = 0;  // K and V read per decoded token, all layers
  uint64_t record_bytes_per_step = 0;
};

// Binds the plugins of `pipeline` (nothing is stored): use it for planning only. Throws what making
// an engine over it would.
MemoryPlan make_plan(const ModelShape& shape, const Model::Memory& model, Pipeline& pipeline,
                     const EngineOptions& options, uint64_t vocabulary_bytes);

struct Binding;

// What the plan counts for one sequence of n_tokens under plugins that are bound; see
// Engine::sequence_bytes. Memory that plugins state for max_sequences counts as a share of it.
MemoryBytes plan_sequence(const Binding& binding, const Pipeline& pipeline, uint32_t n_tokens,
                          uint32_t n_shared);

}  // namespace kvasir
