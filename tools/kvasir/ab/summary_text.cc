// The summary of an A/B run as JSON, as a table and as Markdown.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/task/verdict_text.h"

namespace kvasir::tool {
namespace {

Json interval_json(const Interval& interval) { return Json::array({interval.low, interval.high}); }

// Of an arm, against dense attention.
void add_verdict(Json& out, const AbSummary& s, const AbCell& c) {
  const auto n = samples_to_tell(c.pairs, s.n_comparisons);
  out["lost"] = c.pairs.n_lost;
  out["won"] = c.pairs.n_won;
  out["difference"] =
      c.pairs.n ? Json((static_cast<double>(c.pairs.n_won) - static_cast<double>(c.pairs.n_lost)) /
                       static_cast<double>(c.pairs.n))
                : Json();
  out[s.is_watched ? "difference_sequence" : "difference_95"] = interval_json(s.difference(c));
  out["verdict"] = c.failed.empty() ? Json(name(c.judgement.verdict)) : Json();
  out["engaged"] = c.not_engaged.empty();
  out["not_engaged_because"] = c.not_engaged.empty() ? Json() : Json(c.not_engaged);
  if (!s.is_watched) {
    out["p"] = mcnemar_p(c.pairs);
    out["p_holm"] = c.judgement.p;
    out["samples_to_tell"] = n ? Json(*n) : Json();
    out["tied_with_best"] = c.is_tied_with_best;
  }
  const double dense = s.control(c).answers.value();
  out["oracle_accuracy"] = json_or_null(c.oracle);
  out["random_accuracy"] = json_or_null(c.random);
  out["lost_by_budget"] = c.oracle ? Json(dense - *c.oracle) : Json();
  out["lost_by_choice"] = c.oracle ? Json(*c.oracle - c.answers.value()) : Json();
  out["pareto"] = c.is_pareto;
}

Json cell_json(const AbSummary& s, const AbCell& c) {
  Json out{{"task", c.task},
           {"length", c.length},
           {"strategy", c.label},
           {"role", c.is_dense  ? "dense"
                    : c.is_rung ? "rung"
                                : "arm"},
           {"samples", c.answers.n},
           {"right", c.answers.right},
           {"accuracy", c.answers.value()},
           {"accuracy_95", interval_json(wilson_interval(c.answers.right, c.answers.n))},
           {"answer_tokens_right", c.tokens.value()},
           {"failed", c.failed.empty() ? Json() : Json(c.failed)},
           {"attended_percent", c.attended_percent},
           {"bytes_per_step", c.bytes_per_step},
           {"bytes_to_choose_per_step", c.choose_bytes_per_step},
           {"same_top1", c.same_top1},
           {"mean_kl", c.kl},
           {"fallbacks", c.fallbacks}};
  Json depths = Json::array();
  for (const Share& bin : c.by_depth) depths.push_back({{"samples", bin.n}, {"right", bin.right}});
  out["by_depth"] = depths;
  if (c.is_arm()) add_verdict(out, s, c);
  return out;
}

// Who read prompts in a pass of another.
std::string sharing_note(const AbSummary& s) {
  size_t n_shared = 0;
  for (const auto& group : s.prompt_groups) n_shared += group.size() - 1;
  if (n_shared == 0) return "No two strategies could share a pass over a prompt.";
  return format("%zu of %zu strategies read each prompt in a pass with another.", n_shared,
                s.n_strategies);
}

// "quest did not engage: REASON in passkey at 4096, …": a sentence for each label and reason.
std::vector<std::string> not_engaged_notes(const AbSummary& s) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> where;
  for (const AbCell& c : s.cells)
    if (!c.not_engaged.empty())
      where[{c.label, c.not_engaged}].push_back(c.task + format(" at %u", c.length));
  std::vector<std::string> out;
  for (const auto& [of, cells] : where)
    out.push_back(of.first + " did not engage: " + of.second + " in " + join(cells, ", ") + ".");
  return out;
}

std::vector<std::string> statistics_notes(const AbSummary& s) {
  std::vector<std::string> out;
  out.push_back(
      s.is_watched
          ? format("Against dense: confidence sequences, 5 %% of error for all %zu comparisons, "
                   "which hold at every sample; they say when a task has enough samples.",
                   s.n_comparisons)
          : format("Against dense: exact McNemar test of lost and won, p after Holm over %zu "
                   "comparison%s. Difference: points, with its 95 %% interval (%s).",
                   s.n_comparisons, s.n_comparisons == 1 ? "" : "s", "Agresti and Min"));
  std::vector<Verdict> verdicts;
  for (const AbCell& c : s.cells)
    if (c.has_verdict()) verdicts.push_back(c.judgement.verdict);
  const std::string more = verdict_notes(verdicts, s.margin);
  for (size_t begin = 0; begin < more.size();) {  // a line each, with a line end before it
    const size_t end = std::min(more.find('\n', begin + 1), more.size());
    out.push_back(more.substr(begin + 1, end - begin - 1));
    begin = end;
  }
  return out;
}

}  // namespace

std::string right_text(const AbCell& c) {
  return format("%llu/%llu", static_cast<unsigned long long>(c.answers.right),
                static_cast<unsigned long long>(c.answers.n));
}

std::string points_text(const Interval& shares) {
  return format("%+.1f to %+.1f", 100 * shares.low, 100 * shares.high);
}

std::string verdict_words(const AbSummary& s, const AbCell& c) {
  if (!c.failed.empty()) return "failed";
  if (!c.is_arm() || c.pairs.n == 0) return "";
  return verdict_text(c.pairs, c.judgement.verdict, s.is_watched ? -1 : c.judgement.p,
                      s.n_comparisons) +
         (c.not_engaged.empty() ? "" : ", not engaged");
}

std::vector<std::string> verdict_header() {
  return {"task",   "length",   "strategy",   "right",         "accuracy",
          "lost",   "won",      "difference", "against dense", "oracle",
          "random", "attended", "MB/step",    "same top-1",    "KL"};
}

std::vector<size_t> verdict_numbers() { return {1, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14}; }

std::vector<std::string> verdict_row(const AbSummary& s, const AbCell& c) {
  const bool compared = !c.is_dense && c.pairs.n > 0;
  const auto counted = [&](uint64_t n) { return compared ? std::to_string(n) : std::string(); };
  std::vector<std::string> row = {c.task,
                                  std::to_string(c.length),
                                  c.label,
                                  right_text(c),
                                  c.answers.n ? format("%.1f %%", 100 * c.answers.value()) : "",
                                  counted(c.pairs.n_lost),
                                  counted(c.pairs.n_won),
                                  compared ? points_text(s.difference(c)) : "",
                                  verdict_words(s, c)};
  const auto rung = [](const std::optional<double>& share) {
    return share ? format("%.1f %%", 100 * *share) : std::string();
  };
  row.push_back(rung(c.oracle));
  row.push_back(rung(c.random));
  const bool known = c.answers.n > 0;
  row.push_back(known ? format("%.1f %%", c.attended_percent) : "");
  row.push_back(known ? format("%.3f", c.bytes_per_step / 1e6) : "");
  row.push_back(known ? format("%.1f %%", 100 * c.same_top1) : "");
  row.push_back(known ? format("%.4f", c.kl) : "");
  return row;
}

std::vector<std::string> notes(const AbSummary& s) {
  std::vector<std::string> out;
  const auto goes_on = [&](const AbCell& c) {
    return c.has_verdict() && c.judgement.verdict == Verdict::kCannotTell &&
           s.control(c).answers.n < s.declared.at("samples").get<uint64_t>();
  };
  if (s.is_watched ? std::any_of(s.cells.begin(), s.cells.end(), goes_on)
                   : s.n_samples < s.n_declared)
    out.push_back(format(
        "Not finished: %llu of %s%llu samples.", static_cast<unsigned long long>(s.n_samples),
        s.is_watched ? "at most " : "", static_cast<unsigned long long>(s.n_declared)));
  for (const std::string& note : statistics_notes(s)) out.push_back(note);
  out.emplace_back(
      "MB/step: K and V read for a decoded token, and what was read to choose them. Same top-1 and "
      "KL: predictions against dense attention's, fed the same tokens.");
  const auto has_ladder = [](const AbCell& c) { return c.oracle.has_value(); };
  if (std::any_of(s.cells.begin(), s.cells.end(), has_ladder))
    out.emplace_back(
        "Oracle, random: exact top-k and a random choice at the arm's unit, scope and budget. What "
        "dense has beyond the oracle is lost by the budget, what the oracle has beyond the arm by "
        "its choice.");
  out.push_back(sharing_note(s));
  std::set<std::string> said;
  for (const AbCell& c : s.cells) {
    if (c.is_dense && c.answers.n > 0 && c.answers.right == 0)
      out.push_back(
          "Dense attention has no right answer in " + c.task +
          format(" at %u: this model cannot do it, and no arm has anything to lose.", c.length));
    if (!c.failed.empty() && said.insert(c.label).second)
      out.push_back(c.label + " failed: " + c.failed);
  }
  for (const std::string& note : not_engaged_notes(s)) out.push_back(note);
  return out;
}

Json to_json(const AbSummary& s) {
  Json out{{"format", 1},
           {"declared", s.declared},
           {"samples", s.n_samples},
           {"samples_declared", s.n_declared},
           {"comparisons", s.n_comparisons},
           {"cells", Json::array()}};
  for (const AbCell& cell : s.cells) out["cells"].push_back(cell_json(s, cell));
  return out;
}

std::string to_text(const AbSummary& s) {
  Table table(verdict_header(), verdict_numbers());
  for (const AbCell& cell : s.cells)
    if (!cell.is_rung) table.add(verdict_row(s, cell));
  std::string out = table.text() + "\n";
  for (const std::string& note : notes(s)) out += note + "\n";
  return out;
}

std::string to_markdown(const AbSummary& s) {
  const auto escaped = [](std::vector<std::string> cells) {
    for (std::string& cell : cells)
      for (size_t at = 0; (at = cell.find('|', at)) != cell.npos; at += 2) cell.insert(at, "\\");
    return cells;
  };
  Table table(verdict_header(), verdict_numbers());
  for (const AbCell& cell : s.cells)
    if (!cell.is_rung) table.add(escaped(verdict_row(s, cell)));
  std::string out = "# A/B run: " + title(s) + "\n\n" + table.markdown() + "\n";
  for (const std::string& note : notes(s)) out += "- " + note + "\n";
  return out;
}

std::string title(const AbSummary& s) {
  std::vector<std::string> arms, tasks, lengths;
  for (const Json& strategy : s.declared.at("strategies"))
    if (strategy.at("role") == "arm") arms.push_back(strategy.at("label"));
  for (const Json& task : s.declared.at("tasks")) tasks.push_back(task);
  for (const Json& length : s.declared.at("lengths"))
    lengths.push_back(std::to_string(length.get<uint32_t>()));
  constexpr size_t kMostNamed = 6;
  const std::string who =
      arms.size() > kMostNamed ? format("%zu arms", arms.size()) : join(arms, ", ");
  return who + " against dense on " + join(tasks, ", ") + " at " + join(lengths, ", ") + " tokens";
}

}  // namespace kvasir::tool
