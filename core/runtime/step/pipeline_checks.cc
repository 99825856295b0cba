// See pipeline_checks.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/step/pipeline_checks.h"

#include <algorithm>

#include "core/runtime/select/scores.h"

namespace kvasir {
namespace {

void check_units(const Pipeline& pipeline) {
  for (size_t i = 1; i < pipeline.selectors.size(); ++i)
    if (pipeline.selectors[i]->limits().unit == KVASIR_UNIT_BLOCK &&
        pipeline.selectors[i - 1]->limits().unit == KVASIR_UNIT_TOKEN)
      throw input_error("[[selector]] chain: " + pipeline.selectors[i]->id() +
                        " chooses blocks and cannot follow " + pipeline.selectors[i - 1]->id() +
                        ", which chooses tokens: put the coarser one first");
  for (const auto& selector : pipeline.selectors)  // records and positions are those of blocks
    if (selector->limits().unit == KVASIR_UNIT_TOKEN &&
        (selector->desc().needs & KVASIR_NEED_SCORES ||
         selector->limits().pos_mode == KVASIR_POS_CONSTANT))
      throw input_error(selector->id() +
                        " chooses tokens: scores and constant positions are for selectors that "
                        "choose blocks");
}

// A list per query block narrows nothing that a second selector could choose from, and a
// contribution stands for what that one would leave out.
void check_single(const Pipeline& pipeline) {
  if (pipeline.selectors.size() < 2) return;
  for (const auto& selector : pipeline.selectors) {
    if (selector->limits().query_block || selector->limits().dense_last_queries)
      throw input_error("[[selector]] chain: " + selector->id() +
                        " returns lists per query block, or leaves a prompt's last queries dense, "
                        "and must be the only selector");
    if (selector->desc().needs & KVASIR_NEED_CONTRIBUTION)
      throw input_error("[[selector]] chain: " + selector->id() +
                        " contributes to the attention and must be the only selector");
  }
}

// Weights are those of one kv head: heads that choose together cannot share them.
void check_weights(const Pipeline& pipeline, const kvasir_geometry& g) {
  for (size_t i = 1; i < pipeline.selectors.size(); ++i) {
    const Selector &first = *pipeline.selectors[i - 1], &second = *pipeline.selectors[i];
    if (!first.gives_weights() ||
        (second.limits().scope != KVASIR_SCOPE_SEQUENCE && !g.head_select_shared))
      continue;
    throw input_error("[[selector]] chain: " + first.id() + " weighs keys per kv head and " +
                      second.id() + " chooses for all heads together: let one of them go");
  }
}

// Constant positions and slots are two answers to one question, and neither can be kept for keys
// whose neighbours are given up.
void check_positions(const Pipeline& pipeline, const Binding& binding) {
  if (!binding.constant_positions) return;
  const auto& positions = pipeline.strategy.cache.positions;
  if (positions.value == Positions::kSlot)
    throw input_error(positions.origin.text() + ": positions = \"slot\" cannot be had with " +
                      pipeline.selectors[0]->id() + ", which sets constant positions");
  for (const auto& selector : pipeline.selectors)
    if (selector->limits().unit == KVASIR_UNIT_TOKEN || selector->gives_weights() ||
        selector->limits().scope == KVASIR_SCOPE_Q_HEAD)
      throw input_error(selector->id() +
                        " chooses tokens, weighs them or chooses per query head, and cannot be had "
                        "with constant positions (" +
                        pipeline.selectors[0]->id() + "), which are those of whole blocks");
  for (const auto& selector : pipeline.selectors)
    if (selector->limits().plan_at && selector->limits().action != KVASIR_ACTION_RESTRICT)
      throw input_error(selector->id() +
                        " evicts tokens and cannot be chained with constant "
                        "positions (" +
                        pipeline.selectors[0]->id() + ")");
  if (binding.geometry.k_state != KVASIR_K_UNROTATED)
    throw input_error(pipeline.selectors[0]->id() +
                      " asks for a constant query position without KVASIR_NEED_UNROTATED_K");
}

// Dense attention leaves nothing to foresee, and one --set serves it beside others.
void check_foresee(const Pipeline& pipeline, const kvasir_geometry& g) {
  const auto& foresee = pipeline.strategy.cache.foresee;
  const bool is_dense = std::none_of(
      pipeline.selectors.begin(), pipeline.selectors.end(),
      [](const auto& selector) { return selector->has_select() || selector->has_evict_plan(); });
  if (foresee.value == Foresee::kOff || is_dense || can_foresee(pipeline, g, foresee.value)) return;
  const char* const takes = foresee.value == Foresee::kRead
                                ? "takes the best scores of a kv head, summed over its query heads"
                                : "chooses by scores, and not by keys";
  throw input_error(foresee.origin.text() + ": foresee needs one selector that " + takes +
                    ", and does not look ahead itself (kvasir.block_topk does): leave it off here");
}

}  // namespace

void check_together(const Pipeline& pipeline, const Binding& binding) {
  check_units(pipeline);
  check_single(pipeline);
  check_weights(pipeline, binding.geometry);
  check_positions(pipeline, binding);
  check_foresee(pipeline, binding.geometry);
}

}  // namespace kvasir
