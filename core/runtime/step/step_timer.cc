// Time of a step; see step_timer.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/step_timer.h"

#include <algorithm>

namespace kvasir {
namespace {

// Calls and nanoseconds inside the plugins so far.
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

}  // namespace

void StepTimer::begin(size_t n_lanes) {
  n_lanes_ = n_lanes;
  begun_ = now_nanos();
  model_nanos_ = 0;
}

StepTimer::Mark StepTimer::mark(const Lane& lane) const {
  return {plugin_totals(lane.run.pipeline), now_nanos(), model_nanos_, lane.run.copied_bytes()};
}

void StepTimer::add(Lane& lane, const Mark& before) {
  const Mark after = mark(lane);
  lane.nanos += after.nanos - before.nanos - (after.model_nanos - before.model_nanos);
  lane.copied_bytes += after.copied_bytes - before.copied_bytes;
  lane.plugin_calls += after.plugins.calls - before.plugins.calls;
  lane.plugin_nanos += after.plugins.nanos - before.plugins.nanos;
  if (n_lanes_ > 1) count_transfers(lane);
}

void StepTimer::count_transfers(const Lane& lane) {
  Counters& counters = lane.run.counters;
  counters.latest_prefilled = lane.n_decode == 0;
  if (lane.run.store->moves())
    lane.run.store->count_transfers(counters.of(counters.latest_prefilled));
}

void StepTimer::account(std::vector<Lane>& lanes, uint32_t n_layers) {
  const uint64_t total = now_nanos() - begun_;
  uint64_t in_lanes = 0, n = 0;
  for (const Lane& lane : lanes) {
    in_lanes += lane.nanos;
    n += lane.n_prefill - lane.n_followed + lane.n_decode;
  }
  for (const Lane& lane : lanes) count_transfers(lane);
  const uint64_t rest = total - std::min(total, in_lanes + model_nanos_);
  for (Lane& lane : lanes) {
    const uint64_t lane_tokens = std::max(1u, lane.n_prefill + lane.n_decode);
    for (const bool prefill : {true, false}) {
      const uint64_t tokens = prefill ? lane.n_prefill : lane.n_decode;
      if (tokens == 0) continue;
      const auto of_lane = [&](uint64_t x) { return x * tokens / lane_tokens; };
      // Model time belongs to the tokens that went through it: none to those that follow.
      const uint64_t computed = prefill ? tokens - lane.n_followed : tokens;
      const auto of_step = [&](uint64_t x) { return n ? x * computed / n : 0; };
      Engagement& e = lane.run.counters.of(prefill);
      ++e.steps;
      e.layer_steps += n_layers;
      e.boundary_calls += of_lane(lane.plugin_calls);
      e.device_copy_bytes += of_lane(lane.copied_bytes);
      e.plugin_nanos += of_lane(lane.plugin_nanos);
      e.model_nanos += of_step(model_nanos_);
      e.core_nanos += of_lane(lane.nanos - std::min(lane.nanos, lane.plugin_nanos)) + of_step(rest);
      e.choose_nanos += of_lane(lane.choose_nanos);
      e.attend_nanos += of_lane(lane.attend_nanos);
      e.total_nanos += of_lane(lane.nanos) + of_step(model_nanos_ + rest);
    }
  }
}

}  // namespace kvasir
