// The summary of an A/B run as JSON, as a table and as Markdown.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/kvasir/ab/summary.h"
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/task/verdict_text.h"

namespace kvasir::tool {
namespace {

Json interval_json(const Interval& interval) { return Json::array({interval.low, interval.high}); }

Json spread_json(const std::optional<Spread>& spread) {
  if (!spread) return {};
  return {{"samples", spread->n},
          {"median", spread->median},
          {"median_95", spread->median_95 ? interval_json(*spread->median_95) : Json()},
          {"quartiles", Json::array({spread->first_quartile, spread->third_quartile})}};
}

// Each question for itself, and what is lost more with the last than with the first.
void add_questions(Json& out, const AbSummary& s, const AbCell& c) {
  out["by_question"] = Json::array();
  for (const QuestionCell& q : c.questions) {
    Json one{{"samples", q.answers.n}, {"right", q.answers.right}};
    if (c.is_arm()) {
      one["lost"] = q.pairs.n_lost;
      one["won"] = q.pairs.n_won;
    }
    out["by_question"].push_back(one);
  }
  if (!c.is_arm()) return;
  out["later_loss"] = s.later_loss(c);
  out[s.is_watched ? "later_loss_sequence" : "later_loss_95"] =
      interval_json(s.later_loss_interval(c));
}

// Of an arm, against dense attention.
void add_verdict(Json& out, const AbSummary& s, const AbCell& c) {
  const PairedCounts& pairs = c.pairs.pairs;
  out["lost"] = pairs.n_lost;
  out["won"] = pairs.n_won;
  out["difference"] =
      pairs.n ? Json((static_cast<double>(pairs.n_won) - static_cast<double>(pairs.n_lost)) /
                     static_cast<double>(pairs.n))
              : Json();
  out[s.is_watched ? "difference_sequence" : "difference_95"] = interval_json(s.difference(c));
  out["verdict"] = c.failed.empty() ? Json(name(c.judgement.verdict)) : Json();
  out["engaged"] = c.not_engaged.empty();
  out["not_engaged_because"] = c.not_engaged.empty() ? Json() : Json(c.not_engaged);
  if (!s.is_watched) {
    const auto n = contexts_to_tell(c.pairs, s.n_comparisons);
    out["p"] = sign_flip_p(c.pairs);
    out["p_holm"] = c.judgement.p;
    out["samples_to_tell"] = n ? Json(*n) : Json();
    out["tied_with_best"] = c.is_tied_with_best;
  }
  const double dense = s.control(c).answers.value();
  out["oracle_accuracy"] = json_or_null(c.oracle);
  out["random_accuracy"] = json_or_null(c.random);
  out["masked_accuracy"] = json_or_null(c.masked);
  out["lost_by_budget"] = c.oracle ? Json(dense - *c.oracle) : Json();
  out["lost_by_choice"] = c.oracle ? Json(*c.oracle - c.answers.value()) : Json();
  out["pareto"] = c.is_pareto;
  out["prefill_speedup"] = spread_json(c.prefill_ratio);
  out["decode_speedup"] = spread_json(c.decode_ratio);
}

Json layers_json(const AbCell& c) {
  Json out = Json::array();
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const LayerFigures& f = c.layers[i];
    out.push_back({{"layer", i + 1},
                   {"tokens_attended", f.attended},
                   {"captured_mass", f.captured},
                   {"exact_mass", f.exact},
                   {"heaviest_recall", f.recall},
                   {"output_error", f.error}});
  }
  return out;
}

Json cell_json(const AbSummary& s, const AbCell& c) {
  Json out{{"task", c.task},
           {"length", c.length},
           {"strategy", c.label},
           {"role", c.is_dense  ? "dense"
                    : c.is_rung ? "rung"
                                : "arm"},
           {"samples", c.answers.n / s.n_questions},
           {"answers", c.answers.n},
           {"right", c.answers.right},
           {"accuracy", c.answers.value()},
           {s.is_watched ? "accuracy_sequence" : "accuracy_95", interval_json(s.accuracy(c))},
           {"answer_tokens_right", c.tokens.value()},
           {"failed", c.failed.empty() ? Json() : Json(c.failed)},
           {"attended_percent", c.attended_percent},
           {"bytes_per_step", c.bytes_per_step},
           {"bytes_to_choose_per_step", c.choose_bytes_per_step},
           {"sequence_bytes", c.sequence_bytes},
           {"same_top1", c.same_top1},
           {"mean_kl", c.kl},
           {"fallbacks", c.fallbacks}};
  Json depths = Json::array();
  for (const Share& bin : c.by_depth) depths.push_back({{"samples", bin.n}, {"right", bin.right}});
  out["by_depth"] = depths;
  if (s.n_questions > 1) add_questions(out, s, c);
  if (c.is_arm()) add_verdict(out, s, c);
  if (c.is_arm()) out["layers"] = layers_json(c);
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

// Arms that surely lose more, or less, when a question comes later.
std::vector<std::string> later_notes(const AbSummary& s) {
  std::vector<std::string> out;
  for (const AbCell& c : s.cells) {
    if (s.n_questions == 1 || !c.has_verdict() || c.later.pairs.n == 0) continue;
    const Interval interval = s.later_loss_interval(c);
    if (interval.low <= 0 && interval.high >= 0) continue;
    out.push_back(c.label + " in " + c.task +
                  format(" at %u: loses %.1f points %s with question %u than with the first (%s).",
                         c.length, 100 * std::abs(s.later_loss(c)),
                         s.later_loss(c) > 0 ? "more" : "less", s.n_questions,
                         points_text(interval).c_str()));
  }
  return out;
}

std::vector<std::string> statistics_notes(const AbSummary& s) {
  std::vector<std::string> out;
  out.push_back(
      s.is_watched
          ? format("Against dense: confidence sequences, 5 %% of error for all %zu comparisons, "
                   "which hold at every sample; they say when a task has enough samples.",
                   s.n_comparisons)
          : format(
                "Against dense: exact %s of lost and won, p after Holm over %zu "
                "comparison%s. Difference: points, with its 95 %% interval (%s).",
                s.n_questions == 1 ? "McNemar test" : "sign-flip test by context", s.n_comparisons,
                s.n_comparisons == 1 ? "" : "s",
                s.n_questions == 1 ? "Agresti and Min" : "Agresti and Min, contexts as clusters"));
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
  if (!c.is_arm() || c.pairs.pairs.n == 0) return "";
  return verdict_text(c.pairs, c.judgement.verdict, s.is_watched ? -1 : c.judgement.p,
                      s.n_comparisons) +
         (c.not_engaged.empty() ? "" : ", not engaged");
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
  if (s.n_questions > 1)
    out.push_back(format(
        "%u questions about each context, one after the other; by question: right answers to each.",
        s.n_questions));
  if (s.has_times())
    out.emplace_back(
        "Prefill x, decode x: dense attention's time over the arm's, sample by sample: the median, "
        "and its 95 % interval between two of the ratios. Each decodes by itself; a prompt that "
        "was "
        "read for several counts for each of them.");
  const auto has_ladder = [](const AbCell& c) { return c.oracle.has_value(); };
  if (std::any_of(s.cells.begin(), s.cells.end(), has_ladder))
    out.emplace_back(
        "Oracle, random: exact top-k and a random choice at the arm's unit, scope and budget. What "
        "dense has beyond the oracle is lost by the budget, what the oracle has beyond the arm by "
        "its choice.");
  for (const std::string& note : layer_notes(s)) out.push_back(note);
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
  for (const std::string& note : later_notes(s)) out.push_back(note);
  for (const std::string& note : not_engaged_notes(s)) out.push_back(note);
  return out;
}

Json to_json(const AbSummary& s) {
  Json out{{"format", 1},
           {"declared", s.declared},
           {"samples", s.n_samples},
           {"samples_declared", s.n_declared},
           {"comparisons", s.n_comparisons},
           {"depths", s.depths},
           {"cells", Json::array()}};
  for (const AbCell& cell : s.cells) out["cells"].push_back(cell_json(s, cell));
  return out;
}

std::string to_text(const AbSummary& s) {
  Table table(verdict_header(s), verdict_numbers(s));
  for (const AbCell& cell : s.cells)
    if (!cell.is_rung) table.add(verdict_row(s, cell));
  std::string out = table.text() + "\n";
  if (s.has_layers()) out += layer_table(s).text() + "\n";
  for (const std::string& note : notes(s)) out += note + "\n";
  return out;
}

std::string to_markdown(const AbSummary& s) {
  const auto escaped = [](std::vector<std::string> cells) {
    for (std::string& cell : cells)
      for (size_t at = 0; (at = cell.find('|', at)) != cell.npos; at += 2) cell.insert(at, "\\");
    return cells;
  };
  Table table(verdict_header(s), verdict_numbers(s));
  for (const AbCell& cell : s.cells)
    if (!cell.is_rung) table.add(escaped(verdict_row(s, cell)));
  std::string out = "# A/B run: " + title(s) + "\n\n" + table.markdown() + "\n";
  if (s.has_layers()) out += layer_table(s).markdown() + "\n";
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
