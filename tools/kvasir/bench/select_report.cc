// See select_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/select_report.h"

#include <algorithm>

#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {

const char* const kSelectColumns =
    "Dense attention always runs as control. All strategies decode the same tokens (what dense "
    "attention predicts), a step of each in turn, with cache.dense_below_tokens = 0: otherwise a "
    "strategy would be dense below it.\n\n"
    "First table, medians of decode steps (of groups of cache.token_step steps where a strategy "
    "chooses once in so many):\n"
    "  ms/step    time of a decode step\n"
    "  spread     from the first quartile of the steps to the third, of the median\n"
    "  of dense   the step over the dense one\n"
    "  faster     steps that were faster than the dense one of the same token\n"
    "  choosing   ms of it in selectors and in scores of representatives, and reading for them\n"
    "  attention  ms of it for attention over what was chosen, and the wait for it\n"
    "  layers     ms of it for the dense layers and the logits\n"
    "  other      ms of it for the rest: K and V written, representatives kept up, attention "
    "observed, tokens evicted\n"
    "  attended   tokens attended, of those cached\n"
    "  fallbacks  times that a plugin failed and a layer was dense instead\n"
    "Second table, what a step needs at the least, in ms:\n"
    "  choosing: bytes       what is read to choose / read bandwidth\n"
    "  choosing: arithmetic  one multiply-add (2 flop) per element of it and query head of its "
    "group / rate of multiply-adds. Elements are taken as wide as those of stored K and V, two "
    "bytes at the least\n"
    "  x floor               measured / the larger of the two\n"
    "  attention: bytes      K and V attended / read bandwidth\n"
    "  x floor               measured / that; below 1 where a part was still in the CPU's cache\n"
    "Bandwidth and rate are measured in the same run, with the same threads.\n\n"
    "A strategy pays from the smallest depth at which, and at all larger ones, its step is faster "
    "than the dense one; where it attends to everything it is dense. -n should be a multiple of "
    "cache.token_step.";

namespace {

// None where there is no floor.
std::optional<double> over(double measured, double floor) {
  if (floor <= 0) return std::nullopt;
  return measured / floor;
}

std::string times_text(const std::optional<double>& times) {
  return times ? format("%.1f", *times) : "-";
}

std::string percent(double share) { return format("%.1f %%", 100.0 * share); }

Json row_json(const SelectRow& r, uint32_t n_steps) {
  const StepFloors& f = r.floors;
  return {{"prompt_tokens", r.depth},
          {"strategy", r.strategy},
          {"step_ms", r.step},
          {"step_spread", r.spread},
          {"of_dense", r.of_dense},
          {"steps_faster", r.n_faster},
          {"choose_ms", r.choose},
          {"attend_ms", r.attend},
          {"model_ms", r.model},
          {"other_ms", r.other},
          {"choose_floor_bytes_ms", f.choose_bytes},
          {"choose_floor_arithmetic_ms", f.choose_arithmetic},
          {"choose_over_floor", json_or_null(over(r.choose, f.choose()))},
          {"attend_floor_bytes_ms", f.attend_bytes},
          {"attend_over_floor", json_or_null(over(r.attend, f.attend_bytes))},
          {"bytes_to_choose_per_step", r.decode.bytes_read_to_choose() / n_steps},
          {"kv_bytes_per_step", r.decode.kv_bytes_read / n_steps},
          {"tokens_considered", r.decode.tokens_considered},
          {"tokens_attended", r.decode.tokens_attended},
          {"attended_percent", r.attended_percent()},
          {"attends_everything", r.attends_everything()},
          {"fallbacks", r.decode.fallbacks}};
}

Json proposal_json(const SelectProposal& p) {
  return {{"strategy", p.strategy},
          {"never_chooses", p.never_chooses},
          {"dense_below_tokens", json_or_null(p.dense_below_tokens)},
          {"steps_faster", p.dense_below_tokens ? Json(p.n_faster) : Json()}};
}

std::string times_table(const SelectReport& report) {
  Table table({"tokens", "strategy", "ms/step", "spread", "of dense", "faster", "choosing",
               "attention", "layers", "other", "attended", "fallbacks"},
              {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  for (const SelectRow& r : report.rows)
    table.add({std::to_string(r.depth), r.strategy, format("%.3f", r.step), percent(r.spread),
               format("%.3f", r.of_dense), format("%u/%u", r.n_faster, report.n_steps),
               format("%.3f", r.choose), format("%.3f", r.attend), format("%.3f", r.model),
               format("%.3f", r.other), format("%.1f %%", r.attended_percent()),
               std::to_string(r.decode.fallbacks)});
  return table.text();
}

std::string floors_table(const SelectReport& report) {
  Table table({"tokens", "strategy", "choosing: bytes", "arithmetic", "x floor", "attention: bytes",
               "x floor"},
              {0, 2, 3, 4, 5, 6});
  for (const SelectRow& r : report.rows) {
    const StepFloors& f = r.floors;
    table.add({std::to_string(r.depth), r.strategy, format("%.4f", f.choose_bytes),
               format("%.4f", f.choose_arithmetic), times_text(over(r.choose, f.choose())),
               format("%.4f", f.attend_bytes), times_text(over(r.attend, f.attend_bytes))});
  }
  return table.text();
}

std::string everything_text(const SelectReport& report) {
  const size_t n_strategies = report.rows.size() / report.depths.size();
  std::vector<std::string> places;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const SelectRow& r = report.rows[i];
    if (i % n_strategies != 0 && r.attends_everything())
      places.push_back(format("%s at %u", r.strategy.c_str(), r.depth));
  }
  if (places.empty()) return "";
  return "\nAttended everything, so there was nothing to gain: " + join(places, ", ") + ".\n";
}

std::string proposal_text(const SelectReport& report, const SelectProposal& p) {
  if (p.never_chooses) return "attends to everything at every depth";
  if (!p.dense_below_tokens) return format("not up to %u", report.depths.back());
  std::vector<std::string> notes;
  if (*p.dense_below_tokens == report.depths.front())
    notes.push_back("the smallest depth measured, it may pay below it");
  if (4 * p.n_faster < 3 * report.n_steps)
    notes.push_back(format("uncertain: %u of %u steps were faster", p.n_faster, report.n_steps));
  return format("dense_below_tokens = %u", *p.dense_below_tokens) + (notes.empty() ? "" : "  # ") +
         join(notes, "; ");
}

std::string proposals_text(const SelectReport& report) {
  Table table({"strategy", "[cache]"});
  for (const SelectProposal& p : report.proposals())
    table.add({p.strategy, proposal_text(report, p)});
  return "\nFrom where on a strategy's step is faster than the dense one; below, let it be dense "
         "(a line for\n[cache] of its file, or --set cache.dense_below_tokens=N):\n\n" +
         table.text();
}

}  // namespace

std::vector<SelectProposal> SelectReport::proposals() const {
  const size_t n_strategies = rows.size() / depths.size();
  std::vector<SelectProposal> out;
  for (size_t strategy = 1; strategy < n_strategies; ++strategy) {
    SelectProposal& proposal = out.emplace_back();
    proposal.strategy = rows[strategy].strategy;
    std::vector<DepthRatio> ratios;
    for (size_t depth = 0; depth < depths.size(); ++depth) {
      const SelectRow& row = rows[depth * n_strategies + strategy];
      ratios.push_back({row.depth, row.of_dense, row.attends_everything()});
    }
    proposal.dense_below_tokens = propose_dense_below(ratios);
    for (size_t depth = 0; depth < depths.size(); ++depth)
      if (depths[depth] == proposal.dense_below_tokens)
        proposal.n_faster = rows[depth * n_strategies + strategy].n_faster;
    proposal.never_chooses = std::all_of(ratios.begin(), ratios.end(),
                                         [](const DepthRatio& r) { return r.attends_everything; });
  }
  return out;
}

Json to_json(const SelectReport& r) {
  Json out = to_json(r.setup);
  out["load_ms"] = r.load_ms;
  out["decode_steps"] = r.n_steps;
  out["dense_below_tokens"] = 0;  // while measuring
  out["read_bytes_per_second"] = r.limits.read_bandwidth.middle;
  out["multiply_adds_per_second"] = r.limits.multiply_add_rate.middle;
  out["rows"] = Json::array();
  for (const SelectRow& row : r.rows) out["rows"].push_back(row_json(row, r.n_steps));
  out["proposals"] = Json::array();
  for (const SelectProposal& p : r.proposals()) out["proposals"].push_back(proposal_json(p));
  return out;
}

std::string to_line(const SelectRow& r) {
  return format("%u tokens: ", r.depth) + r.strategy +
         format(": %.3f ms/step, %.3f of dense, attended %.1f %%", r.step, r.of_dense,
                r.attended_percent());
}

std::string to_text(const SelectReport& r) {
  return format(
             "%u decode steps behind each prompt; %s, %u threads. Reads %.2f GB/s, computes %.2f "
             "GFLOP/s.\ndense_below_tokens = 0 in all; the columns: kvasir bench select "
             "--help\n\nTime of a decode step, ms:\n\n",
             r.n_steps, name(r.setup.compute), r.setup.n_threads,
             r.limits.read_bandwidth.middle / 1e9, 2.0 * r.limits.multiply_add_rate.middle / 1e9) +
         times_table(r) + "\nFloors, ms, and how far above them:\n\n" + floors_table(r) +
         everything_text(r) + proposals_text(r);
}

}  // namespace kvasir::tool
