// What the records of an A/B run say: a function of them and of what was declared before the run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/task/sequential.h"
#include "tools/kvasir/ab/run_folder.h"

namespace kvasir::tool {

constexpr size_t kDepthBins = 5;  // of the prompt, where no depths were asked for

struct Share {
  uint64_t n = 0, right = 0;
  double value() const { return n ? static_cast<double>(right) / static_cast<double>(n) : 0; }
};

// One of several questions about each context.
struct QuestionCell {
  Share answers;
  PairedCounts pairs;  // of an arm
};

// One task and length under one strategy.
struct AbCell {
  std::string task;
  uint32_t length = 0;
  std::string label, base, value;
  bool is_dense = false;
  bool is_rung = false;                 // of the ladder of an arm: no verdict, not in tables
  Share answers;                        // questions
  Share tokens;                         // of the answers
  ClusteredShare contexts;              // the answers, by context
  std::vector<QuestionCell> questions;  // in the order they were asked; empty where it is one
  std::string failed;                   // why; empty: it did not
  // Of arms, against dense attention, on the samples that both answered.
  ClusteredPairs pairs;
  Judgement judgement;
  // Of an arm with several questions: what it loses to dense attention with the last one, less what
  // it loses with the first, a share, as a difference between two of -1 … 1 each.
  ClusteredPairs later{2};
  // Of an arm: dense attention's time over its own, sample by sample; none where none was taken.
  std::optional<Spread> prefill_ratio, decode_ratio;
  std::string not_engaged;  // why the verdict says nothing of the arm; empty: it does
  double attended_percent = 100;
  double bytes_per_step = 0;         // K and V read, and what was read to choose
  double choose_bytes_per_step = 0;  // the latter alone
  double sequence_bytes = 0;         // K, V, records, plugins' memory of a sequence, as planned
  double same_top1 = 1, kl = 0;
  uint64_t fallbacks = 0;
  std::vector<Share> by_depth;     // of the needle asked for first: AbSummary::depths, or fifths
  bool is_tied_with_best = false;  // among the arms of its task and length
  bool is_pareto = false;  // no arm here is as accurate with fewer bytes, or more so with as many

  std::optional<double> oracle, random, masked;  // of an arm: accuracies of its rungs
  // Of an arm, of layer 1, 2, …: means over the samples that were looked at; empty: none was.
  std::vector<LayerFigures> layers;

  bool is_arm() const { return !is_dense && !is_rung; }
  bool has_verdict() const { return is_arm() && failed.empty(); }
};

struct AbSummary {
  Json declared;
  bool is_watched = false;  // verdicts of the confidence sequence
  double margin = 0;        // a share
  uint32_t n_questions = 1;
  double most_attended = 90;
  std::vector<double> depths;  // that samples have in turn (--depths), as shares; empty: any
  size_t n_comparisons = 0;
  std::vector<AbCell> cells;  // per length and task, in the order of the strategies
  size_t n_strategies = 1;
  uint64_t n_samples = 0;  // answered: contexts
  uint64_t n_declared = 0;
  std::vector<std::vector<std::string>> prompt_groups;  // labels that read prompts together

  // Of the arm's difference to dense attention: the interval that its verdict stands on.
  Interval difference(const AbCell& cell) const;
  // Of the share of right answers, 95 %, for each by itself; of a watched run at every sample.
  Interval accuracy(const AbCell& cell) const;
  // Points that an arm loses more with the last question than with the first, and their interval.
  double later_loss(const AbCell& cell) const;
  Interval later_loss_interval(const AbCell& cell) const;
  bool has_times() const;                           // any arm's
  bool has_layers() const;                          // any arm's
  const AbCell& control(const AbCell& cell) const;  // dense attention's of the same task and length
  bool any_failed() const;                          // arms
  bool any(Verdict verdict) const;
};

AbSummary summarise(const AbRun& run);
// Whether the samples of a task and length below `index` decide all of its arms.
bool is_decided(const AbRun& run, const std::string& task, uint32_t length, uint64_t index);
// "dense 12/12, quest 11/12": right answers of all tasks and lengths together.
std::string running_scores(const AbRun& run);

// Mean over layers.
LayerFigures all_layers(const AbCell& cell);

Json to_json(const AbSummary& summary);
std::string to_text(const AbSummary& summary);
std::string to_markdown(const AbSummary& summary);

}  // namespace kvasir::tool
