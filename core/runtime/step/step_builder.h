// The kvasir_step that plugins are told a moment with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <vector>

#include "core/runtime/select/index_lists.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Owns what the step points to.
class StepBuilder {
 public:
  // owner: whose slab it carries, or null. candidates: per piece, or empty for ranges only; with
  // scope SEQUENCE the heads' lists must be equal.
  StepBuilder(const RunContext& context, uint32_t moment, const Pass& pass, uint32_t unit,
              const SlabOwner* owner, const std::vector<const Candidates*>& candidates = {},
              uint32_t scope = KVASIR_SCOPE_KV_HEAD);
  const kvasir_step& step() const { return step_; }
  void without_queries();  // the call has no query view: sequences say n_q = 0

 private:
  void add_sequences(const RunContext& context, const std::vector<Piece>& pieces, uint32_t unit,
                     const std::vector<const Candidates*>& candidates);
  void add_lists(const RunContext& context, uint32_t unit, uint32_t scope,
                 const std::vector<const Candidates*>& candidates);

  kvasir_step step_{};
  std::vector<kvasir_step_seq> seqs_;
  SlabLayout::Buffers slab_;
  ListBuffer candidates_;
};

}  // namespace kvasir
