// Proof of engagement: what a run considered, selected, attended and read. Sums over steps, layers,
// kv heads and sequences; prefill and decode apart.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

// What a storage moved out of and into one of its tiers, as it says itself.
struct TierTraffic {
  std::string tier;  // "memory", "file"
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  // Tokens, each kv head for itself: of the fastest tier, leased for reading; of the others, found
  // only there when a step asked.
  uint64_t tokens = 0;
  // Of calls that read, where the storage measures: the time while one or more were under way, and
  // the time of each. Divided by the former the latter is how many were, on average.
  uint64_t n_reads = 0, busy_nanos = 0, read_nanos = 0;
  uint64_t waited_nanos = 0;  // of busy_nanos, while a step waited for what it needs
};

struct Engagement {
  uint64_t steps = 0;                      // passes over all layers: chunks, or decode steps
  uint64_t layer_steps = 0;                // steps x layers
  uint64_t tokens_considered = 0;          // cached tokens
  uint64_t tokens_selected = 0;            // by the plugin; all candidates when attended densely
  uint64_t tokens_attended = 0;            // selected and forced
  uint64_t sliding_tokens = 0;             // attended in layers with a sliding window, which
                                           // the three above leave out
  uint64_t kv_bytes_read = 0;              // K and V of the attended tokens of all layers
  uint64_t window_kv_bytes_read = 0;       // of these, in hybrid mode, in the window
  uint64_t representative_bytes_read = 0;  // records scored
  uint64_t selector_bytes_read = 0;  // K, V, records and tables, as selectors say, to choose by
  uint64_t device_copy_bytes = 0;    // between host and device, both ways; what the core ordered
  uint64_t fallbacks = 0;   // sequences, layer by layer, attended densely because a plugin failed
  uint64_t selections = 0;  // sequences a selector chose for, then or one layer ahead
  uint64_t reused = 0;      // that kept an earlier selection
  uint64_t bypassed = 0;    // whose budget covered everything
  uint64_t backend_skipped = 0;  // keys of the lists that the backend left out by its own choice
  uint64_t blocks_hit = 0;       // full blocks whose needed tokens were in memory when asked for
  uint64_t blocks_missed = 0;    // whose were not
  uint64_t transfer_wait_nanos = 0;  // until those were
  uint64_t boundary_calls = 0;       // crossings of the plugin boundary
  uint64_t plugin_nanos = 0;         // inside plugins
  uint64_t core_nanos = 0;           // core's work between them: append, plan, validate, merge
  uint64_t check_nanos = 0;  // of the core's: checks of the lists, outputs and mass of plugins
  uint64_t model_nanos = 0;  // dense layers
  uint64_t total_nanos = 0;
  // Of what plugins and core took: choosing, scores of representatives included; and attention over
  // what was chosen, with the wait for it.
  uint64_t choose_nanos = 0, attend_nanos = 0;
  // Of a storage that counts, fastest first. What its own threads move is counted with the step
  // that runs or ends next.
  std::vector<TierTraffic> tiers;

  // What choosing read, by whichever plugin.
  uint64_t bytes_read_to_choose() const { return representative_bytes_read + selector_bytes_read; }
};

// Of one strategy.
struct Counters {
  Engagement prefill, decode;
  bool latest_prefilled = false;  // what the storage moves between steps counts there
  Engagement& of(bool in_prefill) { return in_prefill ? prefill : decode; }
};

}  // namespace kvasir
