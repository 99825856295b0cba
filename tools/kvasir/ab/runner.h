// Puts the samples of an A/B run to all strategies, sample by sample.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/task/task.h"
#include "tools/kvasir/ab/lineup.h"
#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/ab/worker.h"
#include "tools/kvasir/task/sample_files.h"

namespace kvasir::tool {

struct AbOptions {
  std::vector<Task> tasks;
  std::vector<uint32_t> lengths;  // tokens of prompt and answers
  std::vector<SampleSet> sets;    // of files, instead of tasks; lengths: the longest sample's
  std::vector<std::string> sample_files;
  TaskOptions task;
  uint64_t seed = 1;
  uint32_t n_samples = 0;  // of each task and length
  // About each context, one after another, each judged by itself. 1: all that the task asks about a
  // context, judged together.
  uint32_t n_questions = 1;
  bool question_in_prompt = false;
  bool stop_when_decided = false;
  uint32_t n_parallel = 1;  // samples that are answered at once
};

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

// Before anything is loaded: of sets, takes the length. Error(kInput) when a task does not fit a
// length, or does not ask so many questions.
void check_tasks(Session& session, AbOptions& options);
// Of tasks or sets.
std::vector<std::string> task_names(const AbOptions& options);

}  // namespace kvasir::tool
