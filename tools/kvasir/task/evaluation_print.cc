// An evaluation as JSON and as a table; one sample's result as JSON.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/task/evaluation.h"

namespace kvasir::tool {
namespace {

double percent(uint64_t part, uint64_t all) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(all, 1));
}

Json cell_json(const Evaluation& e, const EvaluationCell& cell) {
  const Interval interval = wilson_interval(cell.n_correct(), e.n_samples);
  return {{"task", name(cell.task)},
          {"length", cell.length},
          {"strategy", cell.strategy},
          {"samples", e.n_samples},
          {"correct", cell.n_correct()},
          {"accuracy", static_cast<double>(cell.n_correct()) / e.n_samples},
          {"accuracy_low", interval.low},
          {"accuracy_high", interval.high},
          {"lost", e.n_lost(cell)},
          {"won", e.n_won(cell)},
          {"answer_tokens", cell.n_tokens},
          {"answer_tokens_right", cell.n_right},
          {"prefill_shared_with", cell.read_with.empty() ? Json() : Json(cell.read_with)},
          {"seconds", cell.seconds},
          {"wall_seconds", cell.wall_seconds},
          {"engagement", to_json(cell.run)}};
}

std::vector<std::string> table_row(const Evaluation& e, const EvaluationCell& cell) {
  const Engagement& d = cell.run.decode;
  const auto read = static_cast<double>(d.kv_bytes_read + d.bytes_read_to_choose());
  const Interval interval = wilson_interval(cell.n_correct(), e.n_samples);
  const bool is_control = &cell == &e.control(cell);
  const auto changes = [&](uint64_t n) { return is_control ? "" : std::to_string(n); };
  return {name(cell.task),
          std::to_string(cell.length),
          cell.strategy,
          format("%llu/%u", static_cast<unsigned long long>(cell.n_correct()), e.n_samples),
          format("%.1f %%", percent(cell.n_correct(), e.n_samples)),
          format("%.1f - %.1f %%", 100 * interval.low, 100 * interval.high),
          changes(e.n_lost(cell)),
          changes(e.n_won(cell)),
          format("%.1f %%", percent(cell.n_right, cell.n_tokens)),
          format("%.1f %%", cell.run.attended_percent()),
          format("%.3f", read / 1e6 / static_cast<double>(std::max<uint64_t>(cell.n_decoded, 1))),
          std::to_string(d.fallbacks),
          format("%.1f", cell.seconds)};
}

std::string times_text(const Evaluation& e) {
  std::string out =
      format("\nWall time, %u sample%s at once:", e.n_parallel, e.n_parallel > 1 ? "s" : "");
  for (size_t i = 0; i < e.cells.size(); i += e.n_strategies)
    out += format("%s %s %u: %.1f s", i ? "," : "", name(e.cells[i].task), e.cells[i].length,
                  e.cells[i].wall_seconds);
  const auto shares = [](const EvaluationCell& cell) { return !cell.read_with.empty(); };
  const auto n_shared = std::count_if(
      e.cells.begin(), e.cells.begin() + static_cast<ptrdiff_t>(e.n_strategies), shares);
  return out + format(
                   ". %td of %zu strategies shared a pass over the prompts with another; it counts "
                   "for that one.\n",
                   n_shared, e.n_strategies);
}

}  // namespace

Json to_json(const SampleResult& r) {
  Json depths = Json::array();
  for (const double depth : r.depths) depths.push_back(plain(static_cast<float>(depth)));
  return {{"task", name(r.task)},
          {"length", r.length},
          {"strategy", r.strategy},
          {"seed", r.seed},
          {"index", r.index},
          {"prompt_tokens", r.prompt_tokens},
          {"correct", r.answer.correct},
          {"answer_tokens", r.answer.n_tokens},
          {"answer_tokens_right", r.answer.n_right},
          {"expected", r.expected},
          {"given", r.answer.given},
          {"depths", depths}};
}

Json to_json(const Evaluation& e) {
  Json out = to_json(e.setup);
  out["seed"] = e.seed;
  out["samples"] = e.n_samples;
  out["question_in_prompt"] = e.question_in_prompt;
  out["parallel"] = e.n_parallel;
  out["cells"] = Json::array();
  for (const EvaluationCell& cell : e.cells) out["cells"].push_back(cell_json(e, cell));
  return out;
}

std::string to_line(std::span<const EvaluationCell> cells) {
  std::vector<std::string> right;
  for (const EvaluationCell& cell : cells)
    right.push_back(cell.strategy + format(" %llu/%zu",
                                           static_cast<unsigned long long>(cell.n_correct()),
                                           cell.correct.size()));
  return format("%s at %u: ", name(cells[0].task), cells[0].length) + join(right, ", ");
}

std::string to_text(const Evaluation& e) {
  Table table({"task", "length", "strategy", "right", "accuracy", "95 % interval", "lost", "won",
               "tokens right", "attended", "MB/step", "fallbacks", "s"},
              {1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  for (const EvaluationCell& cell : e.cells) table.add(table_row(e, cell));
  return table.text() + times_text(e);
}

}  // namespace kvasir::tool
