// Puts the samples of an A/B run to all strategies, sample by sample.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tools/kvasir/ab/lineup.h"
#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/ab/sample_maker.h"
#include "tools/kvasir/ab/worker.h"

namespace kvasir::tool {

// What a run works with.
struct AbParts {
  Session& session;
  Engine& engine;
  const std::vector<Entrant>& lineup;
  // Of the lineup's strategies in the engine, as enter() returns them; once for each sample that is
  // answered at once.
  const std::vector<std::vector<StrategyId>>& ids;
  Worker& worker;
};

// Answers the samples that the folder does not have yet: sample 0 of every length and task, then
// sample 1, …, each by all strategies, with the prompt read once for those that read it alike. The
// records of a sample go into the folder when all have answered, sample after sample, so that they
// are the same however many are answered at once. Where it is one, each strategy decodes by itself,
// in an order that changes from sample to sample, and times are recorded.
// With stop_when_decided no more samples are drawn of a task and length whose arms are all decided
// (is_decided). A strategy that fails gets records that say so and is left out from the next sample
// on; dense attention's error ends the run. Reports on stderr how far it has come.
void run_samples(const AbParts& parts, const AbOptions& options, RunFolder& folder);

}  // namespace kvasir::tool
