// Which samples an A/B run asks, and what they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/task/task.h"
#include "tools/kvasir/session/session.h"
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
  uint32_t n_parallel = 1;       // samples that are answered at once
  uint32_t n_layer_samples = 0;  // of each task and length: those whose layers are looked at
};

// Before anything is loaded: of sets, takes the length. Error(kInput) when a task does not fit a
// length, or does not ask so many questions.
void check_tasks(Session& session, AbOptions& options);
// Of tasks or sets.
std::vector<std::string> task_names(const AbOptions& options);

// Makes the samples of a run, in any order.
class SampleMaker {
 public:
  // Both must outlive this.
  SampleMaker(const AbOptions& options, const Tokenizer& tokenizer);
  // `task`: place among task_names().
  Sample make(size_t task, uint32_t length, uint64_t index);

 private:
  const AbOptions& options_;
  PieceEncoder encoder_;
  std::map<std::pair<Task, uint32_t>, std::unique_ptr<TaskGenerator>> generators_;
};

}  // namespace kvasir::tool
