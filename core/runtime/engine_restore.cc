// Blocks that a storage kept of earlier sequences; see engine.h.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/runtime/engine_impl.h"
#include "core/runtime/step/restore.h"

namespace kvasir {

bool Engine::Impl::may_restore(StrategyRun& run) const {
  if (!run.pipeline.storage->has_store()) return false;
  const std::string why = run.cannot_restore();
  if (!why.empty() && !std::exchange(run.restore_told, true))
    services.log(KVASIR_LOG_WARN, run.pipeline.storage->id(),
                 "prompts are read whole, not taken from the store: " + why);
  return why.empty();
}

uint32_t Engine::restore(SequenceId id, std::span<const TokenId> prompt) {
  Sequence& seq = impl_->usable(id);
  StrategyRun& run = impl_->run_of(seq);
  if (seq.kv_len != 0 || seq.reads_prompt() || prompt.size() > impl_->options.max_context ||
      !impl_->may_restore(run))
    return 0;
  try {
    for (const auto& [other_id, other] : impl_->sequences) {
      StrategyRun& from = impl_->run_of(*other);
      if (other_id == id || !other->awaited.empty() || !from.can_lead(run)) continue;
      if (const uint32_t n = share_restored(from, *other, run, seq, prompt)) return n;
    }
    return restore_prefix(run, seq, prompt, impl_->options.max_step_tokens);
  } catch (...) {
    seq.fail(std::current_exception());
    throw;
  }
}

uint32_t Engine::restore_unit(StrategyId strategy) const {
  StrategyRun& run = *impl_->runs.at(strategy);
  return impl_->may_restore(run) ? kvasir::restore_unit(run, impl_->options.max_step_tokens) : 0;
}

uint32_t Engine::restore_first_layer(SequenceId id, std::span<const TokenId> prompt) {
  Sequence& seq = impl_->usable(id);
  StrategyRun& run = impl_->run_of(seq);
  if (seq.kv_len != 0 || seq.reads_prompt())
    throw Error(ErrorKind::kInternal, "sequence " + std::to_string(id) + " is not empty");
  if (prompt.size() > impl_->options.max_context || !impl_->may_restore(run)) return 0;
  try {
    return kvasir::restore_first_layer(run, seq, prompt, impl_->options.max_step_tokens);
  } catch (...) {
    seq.fail(std::current_exception());
    throw;
  }
}

bool Engine::restore_layer(SequenceId id, uint32_t layer) {
  Sequence& seq = impl_->readable(id);
  StrategyRun& run = impl_->run_of(seq);
  return seq.awaited.empty() || kvasir::restore_layer(run, seq, layer);
}

bool Engine::has_layer(SequenceId id, uint32_t layer) const {
  const Sequence& seq = impl_->find(id);
  return seq.awaited.empty() || !seq.layers.at(layer).blocks.empty();
}

bool Engine::restore_other_layers(SequenceId id) {
  Sequence& seq = impl_->readable(id);
  StrategyRun& run = impl_->run_of(seq);
  if (seq.awaited.empty()) return true;
  for (uint32_t layer = 0; layer < run.geometry().n_layers; ++layer)
    if (!kvasir::restore_layer(run, seq, layer)) return false;
  seq.awaited.clear();
  hold_restored(run, seq);
  return true;
}

}  // namespace kvasir
