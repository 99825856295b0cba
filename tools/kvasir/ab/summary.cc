// See summary.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/summary.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "tools/kvasir/ab/pairing.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

struct Strategy {
  std::string label, role, base, value, oracle, random, masked;
  bool is_arm() const { return role == "arm"; }
};

// Dense attention first.
std::vector<Strategy> strategies_of(const Json& declared) {
  std::vector<Strategy> out;
  for (const Json& s : declared.at("strategies"))
    out.push_back({s.at("label"), s.at("role"), s.at("base"), s.at("value"), s.at("oracle"),
                   s.at("random"), s.at("masked")});
  return out;
}

size_t comparisons(const Json& declared) {
  size_t n_arms = 0;
  for (const Strategy& s : strategies_of(declared)) n_arms += s.is_arm();
  return n_arms * declared.at("tasks").size() * declared.at("lengths").size();
}

// Records of one strategy by sample.
class Answers {
 public:
  explicit Answers(const AbRun& run) : failed_(failed_in(run)) {
    for (const AbRecord& r : run.records) by_cell_[cell_of(r)].push_back(&r);
  }
  std::optional<std::string> why_failed(const std::string& label) const {
    const auto it = failed_.find(label);
    return it == failed_.end() ? std::nullopt : std::optional(it->second);
  }
  const Records& of(const std::string& task, uint32_t length, const std::string& label) const {
    static const Records kNone;
    const auto it = by_cell_.find({task, length, label});
    return it == by_cell_.end() ? kNone : it->second;
  }

 private:
  std::map<CellKey, Records> by_cell_;
  std::map<std::string, std::string> failed_;  // label, why
};

// has_depths: sample i has the depth number i modulo their number.
size_t depth_bin(const AbRecord& r, size_t n_bins, bool has_depths) {
  if (has_depths) return r.index % n_bins;
  return std::min(static_cast<size_t>(r.depth * static_cast<double>(n_bins)), n_bins - 1);
}

void add(AbCell& cell, const AbRecord& r, bool has_depths) {
  ++cell.answers.n;
  cell.answers.right += r.right;
  cell.tokens.n += r.answer_tokens;
  cell.tokens.right += r.answer_tokens_right;
  Share& bin = cell.by_depth[depth_bin(r, cell.by_depth.size(), has_depths)];
  ++bin.n;
  bin.right += r.right;
  cell.fallbacks += r.fallbacks;
  if (cell.questions.empty()) return;
  Share& question = cell.questions[r.question - 1].answers;
  ++question.n;
  question.right += r.right;
}

void fill(AbCell& cell, const Records& records, bool has_depths) {
  double considered = 0, attended = 0, kv = 0, choose = 0, steps = 0, predictions = 0, agreed = 0;
  uint32_t right = 0;  // of the context
  for (const AbRecord* r : records) {
    if (r->failed) continue;
    add(cell, *r, has_depths);
    right += r->right;
    if (r->question == cell.contexts.n_questions) {
      cell.contexts.add(right);
      right = 0;
    }
    considered += static_cast<double>(r->considered);
    attended += static_cast<double>(r->attended);
    kv += static_cast<double>(r->kv_bytes);
    choose += static_cast<double>(r->choose_bytes);
    steps += static_cast<double>(r->decoded);
    predictions += static_cast<double>(r->predictions);
    agreed += static_cast<double>(r->agreed);
    cell.kl += r->kl * static_cast<double>(r->predictions);
  }
  const auto per = [](double part, double all) { return all > 0 ? part / all : 0; };
  cell.attended_percent = considered > 0 ? 100 * attended / considered : 100;
  cell.choose_bytes_per_step = per(choose, steps);
  cell.bytes_per_step = per(kv + choose, steps);
  cell.same_top1 = predictions > 0 ? agreed / predictions : 1;
  cell.kl = per(cell.kl, predictions);
}

// The arms of one task and length that did not fail.
class Group {
 public:
  explicit Group(std::span<AbCell> cells) {
    for (AbCell& cell : cells)
      if (cell.has_verdict() && cell.answers.n > 0) arms_.push_back(&cell);
  }

  // Fewer bytes and more right answers: who is not beaten in both.
  void mark_pareto() const {
    for (AbCell* cell : arms_) {
      cell->is_pareto = true;
      for (const AbCell* other : arms_) {
        const double more = other->answers.value() - cell->answers.value();
        const double fewer = cell->bytes_per_step - other->bytes_per_step;
        if (more >= 0 && fewer >= 0 && (more > 0 || fewer > 0)) cell->is_pareto = false;
      }
    }
  }

  // By the verdicts' test against the arm with most right answers, Holm over the others.
  void mark_ties(const Answers& answers, uint32_t n_questions) const {
    if (arms_.empty()) return;
    AbCell* best = *std::max_element(arms_.begin(), arms_.end(), [](auto* a, auto* b) {
      return a->answers.value() < b->answers.value();
    });
    best->is_tied_with_best = true;
    std::vector<AbCell*> others;
    std::vector<ClusteredPairs> pairs;
    for (AbCell* cell : arms_) {
      if (cell == best) continue;
      others.push_back(cell);
      pairs.push_back(pair(answers.of(best->task, best->length, best->label),
                           answers.of(cell->task, cell->length, cell->label), n_questions));
    }
    const std::vector<Judgement> judged = judge(pairs, 0);
    for (size_t i = 0; i < others.size(); ++i)
      others[i]->is_tied_with_best = judged[i].verdict != Verdict::kWorse;
  }

 private:
  std::vector<AbCell*> arms_;
};

// Comparisons with an arm that failed count, too: it was declared.
void judge_cells(AbSummary& out) {
  std::vector<ClusteredPairs> pairs;
  for (const AbCell& cell : out.cells)
    if (cell.is_arm()) pairs.push_back(cell.pairs);
  const std::vector<Judgement> judged = judge(pairs, out.margin);
  size_t compared = 0;
  for (AbCell& cell : out.cells) {
    if (!cell.is_arm()) continue;
    cell.judgement = judged[compared++];
    if (out.is_watched)
      cell.judgement.verdict = watched_verdict(cell.pairs, out.n_comparisons, out.margin);
  }
}

const AbCell* answered(std::span<const AbCell> cells, const std::string& label) {
  for (const AbCell& cell : cells)
    if (cell.label == label && cell.failed.empty() && cell.answers.n > 0) return &cell;
  return nullptr;
}

// The rungs of an arm, and whether it left anything out. cells: of its task and length.
void climb(std::span<const AbCell> cells, const Strategy& strategy, AbCell& arm,
           double most_attended) {
  if (!arm.has_verdict() || arm.answers.n == 0) return;
  if (const AbCell* oracle = answered(cells, strategy.oracle)) arm.oracle = oracle->answers.value();
  const AbCell* random = answered(cells, strategy.random);
  if (random) arm.random = random->answers.value();
  if (const AbCell* masked = answered(cells, strategy.masked)) arm.masked = masked->answers.value();
  if (arm.attended_percent > most_attended)
    arm.not_engaged = format("it attended to %.1f %% of the tokens", arm.attended_percent);
}

// Whether choosing matters to the arm's verdict: not where no choice, or a random one, does as
// well. An arm that is worse has chosen worse than that.
void compare_with_rungs(std::span<const AbCell> cells, const Strategy& strategy, AbCell& arm) {
  const Share& dense = cells[0].answers;
  if (!arm.has_verdict() || arm.answers.n == 0 || !arm.not_engaged.empty() || dense.right == 0 ||
      arm.judgement.verdict == Verdict::kWorse)
    return;
  const auto keeps = [&](const std::string& label, const std::string& what) {
    const AbCell* rung = answered(cells, label);
    if (!rung || !arm.not_engaged.empty()) return;
    const uint64_t n_lost = rung->pairs.pairs.n_lost;
    if (10 * n_lost <= dense.right)
      arm.not_engaged = what + format(" keeps %llu of dense's %llu right answers",
                                      static_cast<unsigned long long>(dense.right - n_lost),
                                      static_cast<unsigned long long>(dense.right));
  };
  keeps(strategy.masked, "its sparse layers hold none of the retrieval: no choice at all");
  keeps(strategy.random, "a random choice of as many tokens");
}

void fill_cells(AbSummary& out, const Answers& answers, const std::string& task, uint32_t length,
                const std::vector<Strategy>& strategies) {
  const auto& dense = answers.of(task, length, strategies[0].label);
  const size_t first = out.cells.size();
  for (const Strategy& s : strategies) {
    AbCell cell;
    cell.task = task;
    cell.length = length;
    cell.label = s.label;
    cell.base = s.base;
    cell.value = s.value;
    cell.is_dense = out.cells.size() == first;
    cell.is_rung = !cell.is_dense && !s.is_arm();
    cell.contexts = ClusteredShare(out.n_questions);
    cell.pairs = ClusteredPairs(out.n_questions);
    if (out.n_questions > 1) cell.questions.resize(out.n_questions);
    const auto& records = answers.of(task, length, s.label);
    cell.by_depth.resize(out.depths.empty() ? kDepthBins : out.depths.size());
    fill(cell, records, !out.depths.empty());
    if (const auto why = answers.why_failed(s.label)) cell.failed = *why;
    if (!cell.is_dense) compare(cell, dense, records, out.n_questions);
    out.cells.push_back(std::move(cell));
  }
  const auto cells = std::span(out.cells).subspan(first);
  for (size_t i = 1; i < cells.size(); ++i)
    climb(cells, strategies[i], cells[i], out.most_attended);
  out.n_samples += out.cells[first].answers.n / out.n_questions;
}

void add(LayerFigures& sum, const LayerFigures& f, double weight) {
  for (const auto figure : {&LayerFigures::attended, &LayerFigures::captured, &LayerFigures::exact,
                            &LayerFigures::recall, &LayerFigures::error})
    sum.*figure += weight * f.*figure;
}

void add_layers(AbSummary& out, const std::vector<LayerRecord>& records) {
  std::map<CellKey, std::vector<const LayerRecord*>> by_cell;
  for (const LayerRecord& r : records) by_cell[{r.task, r.length, r.strategy}].push_back(&r);
  for (AbCell& cell : out.cells) {
    const auto& of_cell = by_cell[{cell.task, cell.length, cell.label}];
    uint32_t n_layers = 0;
    for (const LayerRecord* r : of_cell) n_layers = std::max(n_layers, r->layer);
    cell.layers.resize(n_layers);
    const double weight = n_layers / static_cast<double>(of_cell.size());
    for (const LayerRecord* r : of_cell) add(cell.layers[r->layer - 1], r->figures, weight);
  }
}

}  // namespace

LayerFigures all_layers(const AbCell& cell) {
  LayerFigures out;
  for (const LayerFigures& f : cell.layers)
    add(out, f, 1.0 / static_cast<double>(cell.layers.size()));
  return out;
}

Interval AbSummary::difference(const AbCell& cell) const {
  const double level = 0.05 / static_cast<double>(std::max<size_t>(n_comparisons, 1));
  return is_watched ? confidence_sequence(cell.pairs, level) : difference_interval(cell.pairs);
}

Interval AbSummary::accuracy(const AbCell& cell) const {
  return is_watched ? confidence_sequence(cell.contexts, 0.05) : wilson_interval(cell.contexts);
}

// The pairs of `later` are two of each context, so that their difference of shares is half of it.
double AbSummary::later_loss(const AbCell& cell) const {
  const PairedCounts& p = cell.later.pairs;
  return p.n ? 2 * (static_cast<double>(p.n_lost) - static_cast<double>(p.n_won)) /
                   static_cast<double>(p.n)
             : 0;
}

Interval AbSummary::later_loss_interval(const AbCell& cell) const {
  const Interval half =
      is_watched ? confidence_sequence(cell.later, 0.05) : difference_interval(cell.later);
  return {-2 * half.high, -2 * half.low};
}

bool AbSummary::has_times() const {
  return std::any_of(cells.begin(), cells.end(),
                     [](const AbCell& cell) { return cell.decode_ratio.has_value(); });
}

bool AbSummary::has_layers() const {
  return std::any_of(cells.begin(), cells.end(),
                     [](const AbCell& cell) { return !cell.layers.empty(); });
}

const AbCell& AbSummary::control(const AbCell& cell) const {
  const auto i = static_cast<size_t>(&cell - cells.data());
  return cells[i - i % n_strategies];
}

bool AbSummary::any_failed() const {
  return std::any_of(cells.begin(), cells.end(),
                     [](const AbCell& c) { return c.is_arm() && !c.failed.empty(); });
}

bool AbSummary::any(Verdict verdict) const {
  return std::any_of(cells.begin(), cells.end(), [&](const AbCell& cell) {
    return cell.has_verdict() && cell.judgement.verdict == verdict;
  });
}

AbSummary summarise(const AbRun& run) {
  AbSummary out;
  out.declared = run.meta.at("declared");
  out.is_watched = out.declared.at("stop_when") == "decided";
  out.margin = out.declared.at("margin");
  out.n_questions = out.declared.at("questions");
  out.most_attended = out.declared.at("most_attended_percent");
  if (const Json& options = out.declared.at("task_options"); options.contains("depths"))
    out.depths = options["depths"].get<std::vector<double>>();
  out.n_comparisons = comparisons(out.declared);
  out.n_declared = out.declared.at("samples").get<uint64_t>() * out.declared.at("tasks").size() *
                   out.declared.at("lengths").size();
  for (const Json& group : run.meta.at("prompt_groups")) out.prompt_groups.push_back(group);
  const std::vector<Strategy> strategies = strategies_of(out.declared);
  out.n_strategies = strategies.size();
  const Answers answers(run);
  for (const Json& length : out.declared.at("lengths"))
    for (const Json& task : out.declared.at("tasks"))
      fill_cells(out, answers, task, length, strategies);
  add_layers(out, run.layers);
  const Json& planned = run.meta.at("sequence_bytes");
  for (AbCell& cell : out.cells)
    if (planned.contains(cell.label))
      cell.sequence_bytes = planned.at(cell.label).at(std::to_string(cell.length));
  judge_cells(out);
  for (size_t begin = 0; begin < out.cells.size(); begin += strategies.size()) {
    const auto cells = std::span(out.cells).subspan(begin, strategies.size());
    for (size_t i = 1; i < cells.size(); ++i) compare_with_rungs(cells, strategies[i], cells[i]);
    const Group group(cells);
    group.mark_pareto();
    if (!out.is_watched)
      group.mark_ties(answers, out.n_questions);  // their test counts on a fixed n
  }
  return out;
}

bool is_decided(const AbRun& run, const std::string& task, uint32_t length, uint64_t index) {
  const Json& declared = run.meta.at("declared");
  std::map<std::string, Records> by_strategy;
  const auto failed = failed_in(run);
  for (const AbRecord& r : run.records)
    if (r.task == task && r.length == length && r.index < index)
      by_strategy[r.strategy].push_back(&r);
  const std::vector<Strategy> strategies = strategies_of(declared);
  for (size_t i = 1; i < strategies.size(); ++i) {
    const std::string& label = strategies[i].label;
    if (failed.count(label) || !strategies[i].is_arm()) continue;
    const ClusteredPairs pairs =
        pair(by_strategy[strategies[0].label], by_strategy[label], declared.at("questions"));
    if (watched_verdict(pairs, comparisons(declared), declared.at("margin")) ==
        Verdict::kCannotTell)
      return false;
  }
  return true;
}

std::string running_scores(const AbRun& run) {
  std::map<std::string, Share> right;
  for (const AbRecord& r : run.records) {
    if (r.failed) continue;
    ++right[r.strategy].n;
    right[r.strategy].right += r.right;
  }
  std::vector<std::string> parts;
  for (const Strategy& s : strategies_of(run.meta.at("declared")))
    if (s.is_arm() || s.role == "dense")
      parts.push_back(s.label + format(" %llu/%llu",
                                       static_cast<unsigned long long>(right[s.label].right),
                                       static_cast<unsigned long long>(right[s.label].n)));
  return join(parts, ", ");
}

}  // namespace kvasir::tool
