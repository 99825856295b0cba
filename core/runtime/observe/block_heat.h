// What blocks are worth to a strategy, told to a storage that orders them by it
// (kvasir.block-heat/1).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/attend/attend_stage.h"
#include "core/runtime/select/candidates.h"
#include "core/runtime/select/scores.h"
#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Of those pieces that RunContext::heats_by_mass(), after they were attended in a layer that is not
// dense.
void tell_mass(const RunContext& context, const Pass& pass, AttendStage& attention);
// Candidates are in blocks, scores in their order; [pieces].
void tell_scores(const RunContext& context, const Pass& pass,
                 const std::vector<const Candidates*>& candidates, const Scores& scores);

}  // namespace kvasir
