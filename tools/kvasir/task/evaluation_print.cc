// An evaluation as JSON and as a table; one sample's result as JSON.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <span>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/masked.h"
#include "tools/kvasir/task/evaluation.h"
#include "tools/kvasir/task/verdict_text.h"

namespace kvasir::tool {
namespace {

double percent(uint64_t part, uint64_t all) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(all, 1));
}

// Against dense attention; empty for that itself.
Json verdict_json(const Evaluation& e, const CellVerdict& v) {
  const Interval difference = difference_interval(v.pairs);
  const auto n = samples_to_tell(v.pairs, e.n_comparisons());
  return {{"lost", v.pairs.n_lost},           {"won", v.pairs.n_won},
          {"difference_low", difference.low}, {"difference_high", difference.high},
          {"p", mcnemar_p(v.pairs)},          {"p_holm", v.p},
          {"verdict", name(v.verdict)},       {"samples_to_tell", n ? Json(*n) : Json()}};
}

Json values(std::span<const MeanScore> scores) {
  Json out = Json::array();
  for (const MeanScore& score : scores) out.push_back(score.value());
  return out;
}

Json cell_json(const Evaluation& e, const EvaluationCell& cell, const CellVerdict& v) {
  const Interval interval = cell.interval();
  const bool by_text = cell.judging == Judging::kText;
  return {{"task", cell.task},
          {"length", cell.length},
          {"strategy", cell.strategy},
          {"judged_by", name(cell.judging)},
          {"scorer", by_text ? Json(name(cell.scorer)) : Json()},
          {"samples", cell.scores.size()},
          {"correct", cell.n_correct()},
          {"accuracy", cell.accuracy()},
          {"accuracy_low", interval.low},
          {"accuracy_high", interval.high},
          {"engaged", e.has_engaged(cell)},
          {"masked_correct",
           cell.masked_correct.empty()
               ? Json()
               : Json(std::count(cell.masked_correct.begin(), cell.masked_correct.end(), true))},
          {"against_dense", e.is_control(cell) ? Json() : verdict_json(e, v)},
          {"answer_tokens", cell.n_tokens},
          {"answer_tokens_right", by_text ? Json() : Json(cell.n_right)},
          {"accuracy_by_turn", values(cell.by_turn)},
          {"accuracy_by_depth", values(cell.by_depth)},
          {"accuracy_by_eighth", cell.by_eighth[0].n ? values(cell.by_eighth) : Json()},
          {"prefill_shared_with", cell.read_with.empty() ? Json() : Json(cell.read_with)},
          {"seconds", cell.seconds},
          {"wall_seconds", cell.wall_seconds},
          {"engagement", to_json(cell.run)}};
}

std::vector<std::string> table_row(const Evaluation& e, const EvaluationCell& cell,
                                   const CellVerdict& v) {
  const Engagement& d = cell.run.decode;
  const auto read = static_cast<double>(d.kv_bytes_read + d.bytes_read_to_choose());
  const Interval interval = cell.interval();
  const bool is_control = e.is_control(cell);
  const auto changes = [&](uint64_t n) { return is_control ? "" : std::to_string(n); };
  return {
      cell.task,
      std::to_string(cell.length),
      cell.strategy,
      format("%llu/%zu", static_cast<unsigned long long>(cell.n_correct()), cell.scores.size()),
      format("%.1f %%", 100 * cell.accuracy()),
      format("%.1f - %.1f %%", 100 * interval.low, 100 * interval.high),
      changes(v.pairs.n_lost),
      changes(v.pairs.n_won),
      is_control ? ""
                 : verdict_text(v.pairs, v.verdict, v.p, e.n_comparisons()) +
                       (e.has_engaged(cell) ? "" : ", not engaged"),
      cell.judging == Judging::kText ? "" : format("%.1f %%", percent(cell.n_right, cell.n_tokens)),
      format("%.1f %%", cell.run.attended_percent()),
      format("%.3f", read / 1e6 / static_cast<double>(std::max<uint64_t>(cell.n_decoded, 1))),
      std::to_string(d.fallbacks),
      format("%.1f", cell.seconds)};
}

std::string times_text(const Evaluation& e) {
  const uint32_t n_parallel = e.options.n_parallel;
  std::string out =
      format("\nWall time, %u sample%s at once:", n_parallel, n_parallel > 1 ? "s" : "");
  for (size_t i = 0; i < e.cells.size(); i += e.n_strategies)
    out += format("%s %s %u: %.1f s", i ? "," : "", e.cells[i].task.c_str(), e.cells[i].length,
                  e.cells[i].wall_seconds);
  const auto shares = [](const EvaluationCell& cell) { return !cell.read_with.empty(); };
  const auto n_shared = std::count_if(
      e.cells.begin(), e.cells.begin() + static_cast<ptrdiff_t>(e.n_strategies), shares);
  return out + format(
                   ". %td of %zu strategies shared a pass over the prompts with another; it counts "
                   "for that one.\n",
                   n_shared, e.n_strategies);
}

// What the verdicts of the table stand on.
std::string verdicts_text(const std::vector<CellVerdict>& verdicts, const Evaluation& e) {
  const size_t n_compared = e.n_comparisons();
  if (n_compared == 0) return "";
  std::string out = format(
      "\nAgainst dense: exact McNemar test of lost and won, p after Holm over %zu comparison%s.",
      n_compared, n_compared > 1 ? "s" : "");
  std::vector<Verdict> given;
  for (const CellVerdict& v : verdicts) given.push_back(v.verdict);
  out += verdict_notes(given, e.options.margin);
  return out + "\n";
}

std::string store_text(const Evaluation& e) {
  std::vector<const RunReport*> reports;
  for (const EvaluationCell& cell : e.cells) reports.push_back(&cell.run);
  return restored_text(reports);
}

// A line per cell with the accuracies of its parts, or nothing.
std::string by_part(const Evaluation& e, const std::string& title, const char* unit,
                    const std::function<std::span<const MeanScore>(const EvaluationCell&)>& parts) {
  Table table({"task", "length", "strategy", unit}, {1});
  bool is_empty = true;
  for (const EvaluationCell& cell : e.cells) {
    std::string line;
    for (const MeanScore& part : parts(cell))
      line += format("%s%3.0f", line.empty() ? "" : "  ", 100 * part.value());
    if (line.empty()) continue;
    is_empty = false;
    table.add({cell.task, std::to_string(cell.length), cell.strategy, line});
  }
  return is_empty ? "" : "\n" + title + "\n\n" + table.text();
}

// What the accuracy is made of: turns, eighths of values, depths.
std::string parts_text(const Evaluation& e) {
  using Parts = std::span<const MeanScore>;
  const auto turns = [](const EvaluationCell& cell) {
    return cell.by_turn.size() > 1 ? Parts(cell.by_turn) : Parts();
  };
  const auto eighths = [](const EvaluationCell& cell) {
    return cell.by_eighth[0].n ? Parts(cell.by_eighth) : Parts();
  };
  const auto depths = [](const EvaluationCell& cell) { return Parts(cell.by_depth); };
  std::string depth_names;
  for (const double depth : e.options.task.depths)
    depth_names += format("%s%3.0f", depth_names.empty() ? "" : "  ", 100 * depth);
  return by_part(e, "Accuracy in percent by turn:", "first to last", turns) +
         by_part(e, "Accuracy in percent by eighth of the value:", "first to last", eighths) +
         by_part(e, "Accuracy in percent by depth of the needle, in percent:", depth_names.c_str(),
                 depths);
}

// Strategies of some cell that is so, each once.
template <class Is>
std::vector<std::string> strategies_that(const Evaluation& e, Is&& is) {
  std::vector<std::string> out;
  for (const EvaluationCell& cell : e.cells)
    if (!e.is_control(cell) && is(cell) &&
        std::find(out.begin(), out.end(), cell.strategy) == out.end())
      out.push_back(cell.strategy);
  return out;
}

std::string idle_text(const Evaluation& e) {
  const auto attends_to_all = [&](const EvaluationCell& cell) {
    return !cell.run.has_engaged(e.options.most_attended);
  };
  const auto is_kept_by_mask = [&](const EvaluationCell& cell) {
    return !attends_to_all(cell) && e.is_kept_by_mask(cell);
  };
  const std::vector<std::string> idle = strategies_that(e, attends_to_all);
  const std::vector<std::string> masked = strategies_that(e, is_kept_by_mask);
  std::string out;
  if (!idle.empty()) out += "\n" + not_engaged_text(idle, e.options.most_attended);
  if (!masked.empty())
    out += "\n" + kept_by_mask_text(masked, "dense attention's right answers") +
           " (rows that say so).\n";
  return out;
}

}  // namespace

Json to_json(const SampleResult& r) {
  Json depths = Json::array();
  for (const double depth : r.depths) depths.push_back(plain(static_cast<float>(depth)));
  return {{"task", r.task},
          {"length", r.length},
          {"strategy", r.strategy},
          {"seed", r.seed},
          {"index", r.index},
          {"prompt_tokens", r.prompt_tokens},
          {"correct", r.answer.correct},
          {"score", r.answer.score},
          {"answer_tokens", r.answer.n_tokens},
          {"answer_tokens_right", r.answer.n_right},
          {"expected", r.expected},
          {"given", r.answer.given},
          {"depths", depths}};
}

Json to_json(const Evaluation& e) {
  Json out = to_json(e.setup);
  out["seed"] = e.options.seed;
  out["samples"] = e.options.sets.empty() ? Json(e.options.n_samples) : Json();
  out["question_in_prompt"] = e.options.question_in_prompt;
  out["parallel"] = e.options.n_parallel;
  out["margin"] = e.options.margin;
  out["cells"] = Json::array();
  const std::vector<CellVerdict> verdicts = e.verdicts();
  for (size_t i = 0; i < e.cells.size(); ++i)
    out["cells"].push_back(cell_json(e, e.cells[i], verdicts[i]));
  return out;
}

std::string to_line(std::span<const EvaluationCell> cells) {
  std::vector<std::string> right;
  for (const EvaluationCell& cell : cells)
    right.push_back(cell.strategy + format(" %llu/%zu",
                                           static_cast<unsigned long long>(cell.n_correct()),
                                           cell.scores.size()));
  return format("%s at %u: ", cells[0].task.c_str(), cells[0].length) + join(right, ", ");
}

std::string to_text(const Evaluation& e) {
  Table table({"task", "length", "strategy", "right", "accuracy", "95 % interval", "lost", "won",
               "against dense", "tokens right", "attended", "MB/step", "fallbacks", "s"},
              {1, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13});
  const std::vector<CellVerdict> verdicts = e.verdicts();
  for (size_t i = 0; i < e.cells.size(); ++i) table.add(table_row(e, e.cells[i], verdicts[i]));
  return table.text() + parts_text(e) + verdicts_text(verdicts, e) + idle_text(e) + times_text(e) +
         store_text(e);
}

}  // namespace kvasir::tool
