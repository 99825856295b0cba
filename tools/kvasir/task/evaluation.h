// The same samples through dense attention and other strategies; how well each answers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/task/evaluate.h"
#include "core/task/statistics.h"
#include "tools/kvasir/session/arms.h"
#include "tools/kvasir/session/run_report.h"
#include "tools/kvasir/session/session.h"
#include "tools/kvasir/task/sample_files.h"

namespace kvasir::tool {

struct EvaluationOptions {
  std::vector<Task> tasks;
  std::vector<uint32_t> lengths;   // tokens of prompt and answers
  std::vector<SampleSet> sets;     // instead of tasks and lengths
  std::optional<Judging> judging;  // none: as each task says; sets by text
  TaskOptions task;
  uint64_t seed = 1;
  uint32_t n_samples = 200;  // of each task and length; of sets all
  uint32_t n_parallel = 1;   // samples answered at once
  bool question_in_prompt = false;
  double margin = 0;  // difference of accuracies that does not matter, as a share
  double most_attended = kMostAttendedPercent;
};

// One sample under one strategy.
struct SampleResult {
  std::string task;
  uint32_t length = 0;
  std::string strategy;
  uint64_t seed = 0, index = 0;
  uint64_t prompt_tokens = 0;
  TaskAnswer answer;
  std::vector<std::string> expected;  // per turn
  std::vector<double> depths;         // of the needles that are asked for
};

struct MeanScore {
  uint64_t n = 0;
  double sum = 0;
  void add(double score) {
    ++n;
    sum += score;
  }
  double value() const { return n ? sum / static_cast<double>(n) : 0; }
};

// One task, length and strategy.
struct EvaluationCell {
  std::string task;
  uint32_t length = 0;  // of sets: of the longest sample
  std::string strategy;
  Judging judging = Judging::kTokens;
  Scorer scorer = Scorer::kExact;  // by text
  std::vector<double> scores;      // per sample, 0 … 1
  // Per sample, whether the strategy masked, with nothing chosen, has a score of 1; empty: it has
  // no mask.
  std::vector<bool> masked_correct;
  std::vector<MeanScore> by_turn;
  std::vector<MeanScore> by_depth;     // in the order of TaskOptions::depths
  std::array<MeanScore, 8> by_eighth;  // of the references of Scorer::kEighths
  uint64_t n_tokens = 0, n_right = 0, n_decoded = 0;
  std::string read_with;    // the strategy whose pass over the prompts it shared; empty: its own
  double seconds = 0;       // in its own part of the steps
  double wall_seconds = 0;  // of all strategies of the task and length
  RunReport run;

  uint64_t n_correct() const;  // with the full score
  double accuracy() const;     // mean score
  Interval interval() const;   // of the accuracy, 95 %
};

// What the samples say of one strategy against dense attention.
struct CellVerdict {
  PairedCounts pairs;  // lost: dense attention's score is the higher one
  double p = 1;        // of McNemar's test, after Holm over all comparisons of the evaluation
  Verdict verdict = Verdict::kSame;
};

struct Evaluation {
  Setup setup;
  EvaluationOptions options;
  size_t n_strategies = 1;
  std::vector<EvaluationCell> cells;  // per length, task and strategy, dense first

  // Dense attention's cell of the same task and length.
  const EvaluationCell& control(const EvaluationCell& cell) const;
  bool is_control(const EvaluationCell& cell) const { return &cell == &control(cell); }
  // Whether it left out enough, and its choice mattered.
  bool has_engaged(const EvaluationCell& cell) const {
    return is_control(cell) ||
           (cell.run.has_engaged(options.most_attended) && !is_kept_by_mask(cell));
  }
  // Nine tenths of what dense attention answers right are kept by the strategy and by its mask: its
  // sparse layers hold none of the retrieval.
  bool is_kept_by_mask(const EvaluationCell& cell) const;
  size_t n_comparisons() const { return cells.size() / n_strategies * (n_strategies - 1); }
  // In the order of cells; those of dense attention against itself are the same.
  std::vector<CellVerdict> verdicts() const;
};

// Called when all strategies have answered a sample, once for each, in the order of samples.
using OnSample = std::function<void(const SampleResult& result)>;
// Likewise, with the sample of a set as it was read.
using OnSetSample = std::function<void(const SampleText& sample, const SampleResult& result)>;

// Reports on stderr how far it has come. Loads the session's model. Error(kInput) before that when
// a task does not fit a length.
Evaluation evaluate(Session& session, const std::vector<Arm>& arms,
                    const EvaluationOptions& options, const OnSample& on_sample,
                    const OnSetSample& on_set_sample = nullptr);

Json to_json(const SampleResult& result);
Json to_json(const Evaluation& evaluation);
std::string to_text(const Evaluation& evaluation);
// Cells of one task and length.
std::string to_line(std::span<const EvaluationCell> cells);

}  // namespace kvasir::tool
