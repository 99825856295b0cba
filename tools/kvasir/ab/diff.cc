// kvasir ab diff: the same samples in two runs, strategy by strategy.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "tools/kvasir/ab/commands.h"
#include "tools/kvasir/ab/run_folder.h"
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/task/verdict_text.h"

namespace kvasir::tool {
namespace {

// One task, length and strategy: the second run against the first, on the samples of both.
struct DiffRow {
  std::string task;
  uint32_t length = 0;
  std::string strategy;
  uint64_t n_right_first = 0, n_right_second = 0;
  uint64_t n_same_text = 0;  // samples with the same given answers
  ClusteredPairs pairs;
  Judgement judgement;
};

struct RunDiff {
  std::string first, second;          // folders
  uint32_t n_questions = 1;           // about each context, in both
  std::vector<std::string> declared;  // what was declared otherwise: keys
  std::vector<DiffRow> rows;
  std::vector<std::string> only_first, only_second;  // strategies
  std::vector<std::string> configured;               // otherwise: strategy, key and both values
  std::map<std::string, std::string> failed_first, failed_second;  // strategy, why: no row
};

using Answers = std::map<std::pair<uint64_t, uint32_t>, const AbRecord*>;  // by index and question

std::map<CellKey, Answers> answers_of(const AbRun& run) {
  std::map<CellKey, Answers> out;
  for (const AbRecord& r : run.records)
    if (!r.failed) out[cell_of(r)][{r.index, r.question}] = &r;
  return out;
}

// What strategies of one name have configured otherwise.
std::vector<std::string> configured_otherwise(const AbRun& first, const AbRun& second) {
  std::vector<std::string> out;
  for (const Json& a : first.meta.at("declared").at("strategies"))
    for (const Json& b : second.meta.at("declared").at("strategies")) {
      if (a.at("label") != b.at("label")) continue;
      const Json &before = a.at("configuration"), &after = b.at("configuration");
      const auto value = [](const Json& of, const std::string& key) {
        return of.contains(key) ? of.at(key).get<std::string>() : std::string("not set");
      };
      Json keys = before;
      keys.update(after);
      for (const auto& [key, ignored] : keys.items())
        if (value(before, key) != value(after, key))
          out.push_back(a.at("label").get<std::string>() + ": " + key + " " + value(before, key) +
                        ", then " + value(after, key));
    }
  return out;
}

std::vector<std::string> labels_of(const AbRun& run) {
  std::vector<std::string> out;
  for (const Json& s : run.meta.at("declared").at("strategies")) out.push_back(s.at("label"));
  return out;
}

std::vector<std::string> missing(const std::vector<std::string>& from,
                                 const std::vector<std::string>& in) {
  std::vector<std::string> out;
  for (const std::string& label : from)
    if (std::find(in.begin(), in.end(), label) == in.end()) out.push_back(label);
  return out;
}

DiffRow compare(const Answers& first, const Answers& second, const RunDiff& runs) {
  DiffRow out;
  out.pairs = ClusteredPairs(runs.n_questions);
  PairedCounts context;
  for (const auto& [place, a] : first) {
    const auto found = second.find(place);
    if (found == second.end()) continue;
    const AbRecord& b = *found->second;
    if (a->expected != b.expected)
      throw input_error(runs.first + " and " + runs.second +
                        ": not the same samples: run both with the same --seed, tasks and "
                        "task flags, and models of one tokenizer");
    context.add(a->right, b.right);
    if (context.n == runs.n_questions) {
      out.pairs.add(context);
      context = {};
    }
    out.n_right_first += a->right;
    out.n_right_second += b.right;
    out.n_same_text += a->given == b.given;
  }
  return out;
}

RunDiff diff(const std::string& first, const std::string& second) {
  RunDiff out;
  out.first = first;
  out.second = second;
  const AbRun a = read_run(first), b = read_run(second);
  out.n_questions = a.meta.at("declared").at("questions");
  if (b.meta.at("declared").at("questions") != out.n_questions)
    throw input_error(
        first + " and " + second +
        ": not as many questions about a context: run both with the same --questions");
  out.configured = configured_otherwise(a, b);
  out.failed_first = failed_in(a);
  out.failed_second = failed_in(b);
  for (const auto& [key, value] : a.meta.at("declared").items())
    if (key != "strategies" && b.meta.at("declared").value(key, Json()) != value)
      out.declared.push_back(key);
  out.only_first = missing(labels_of(a), labels_of(b));
  out.only_second = missing(labels_of(b), labels_of(a));
  const auto answers_a = answers_of(a), answers_b = answers_of(b);
  std::vector<ClusteredPairs> pairs;
  for (const Json& length : a.meta.at("declared").at("lengths"))
    for (const Json& task : a.meta.at("declared").at("tasks"))
      for (const std::string& label : labels_of(a)) {
        if (out.failed_first.count(label) || out.failed_second.count(label)) continue;
        const CellKey key{task, length, label};
        const auto here = answers_a.find(key), there = answers_b.find(key);
        if (here == answers_a.end() || there == answers_b.end()) continue;
        DiffRow row = compare(here->second, there->second, out);
        row.task = task;
        row.length = length;
        row.strategy = label;
        pairs.push_back(row.pairs);
        out.rows.push_back(row);
      }
  if (out.rows.empty() && out.failed_first.empty() && out.failed_second.empty())
    throw input_error(first + " and " + second + ": no task, length and strategy is in both");
  const std::vector<Judgement> judged = judge(pairs, 0);
  for (size_t i = 0; i < judged.size(); ++i) out.rows[i].judgement = judged[i];
  return out;
}

Json to_json(const RunDiff& d) {
  Json rows = Json::array();
  for (const DiffRow& r : d.rows) {
    const Interval interval = difference_interval(r.pairs);
    rows.push_back({{"task", r.task},
                    {"length", r.length},
                    {"strategy", r.strategy},
                    {"samples", r.pairs.n_contexts()},
                    {"right_first", r.n_right_first},
                    {"right_second", r.n_right_second},
                    {"same_answers", r.n_same_text},
                    {"lost", r.pairs.pairs.n_lost},
                    {"won", r.pairs.pairs.n_won},
                    {"difference_95", Json::array({interval.low, interval.high})},
                    {"p_holm", r.judgement.p},
                    {"verdict", name(r.judgement.verdict)}});
  }
  return {{"first", d.first},
          {"second", d.second},
          {"declared_otherwise", d.declared},
          {"only_first", d.only_first},
          {"only_second", d.only_second},
          {"configured_otherwise", d.configured},
          {"failed_first", d.failed_first},
          {"failed_second", d.failed_second},
          {"rows", rows}};
}

// Between two runs a gain is nothing suspicious.
std::string words(const DiffRow& r, size_t n) {
  return r.judgement.verdict == Verdict::kBetter
             ? format("better, p %.2g", r.judgement.p)
             : verdict_text(r.pairs, r.judgement.verdict, r.judgement.p, n);
}

std::string to_text(const RunDiff& d) {
  Table table({"task", "length", "strategy", "samples", "right before", "right after", "lost",
               "won", "difference", "same answers", "after against before"},
              {1, 3, 4, 5, 6, 7, 8, 9});
  for (const DiffRow& r : d.rows)
    table.add({r.task, std::to_string(r.length), r.strategy, std::to_string(r.pairs.n_contexts()),
               std::to_string(r.n_right_first), std::to_string(r.n_right_second),
               std::to_string(r.pairs.pairs.n_lost), std::to_string(r.pairs.pairs.n_won),
               points_text(difference_interval(r.pairs)), std::to_string(r.n_same_text),
               words(r, d.rows.size())});
  std::string out =
      "before: " + d.first + "\nafter:  " + d.second + "\n\n" + table.text() + "\n" +
      format("Exact %s test on the same samples, p after Holm over %zu comparisons.\n",
             d.n_questions == 1 ? "McNemar" : "sign-flip", d.rows.size());
  if (!d.declared.empty()) out += "Declared otherwise: " + join(d.declared, ", ") + ".\n";
  for (const std::string& line : d.configured) out += "Configured otherwise: " + line + ".\n";
  for (const auto& [label, why] : d.failed_first)
    out += "Failed before: " + label + ": " + why + "\n";
  for (const auto& [label, why] : d.failed_second)
    out += "Failed after: " + label + ": " + why + "\n";
  if (!d.only_first.empty()) out += "Only before: " + join(d.only_first, ", ") + ".\n";
  if (!d.only_second.empty()) out += "Only after: " + join(d.only_second, ", ") + ".\n";
  return out;
}

}  // namespace

void add_ab_diff(CLI::App& ab) {
  auto* c = ab.add_subcommand("diff", "What a second run of the same samples changes, paired");
  struct Flags {
    std::string first, second;
    bool json = false;
  };
  auto f = std::make_shared<Flags>();
  c->add_option("BEFORE", f->first, "Folder of a run")->required();
  c->add_option("AFTER", f->second, "Folder of another one")->required();
  add_json(*c, f->json);
  c->callback([=] {
    refuse_before(*c);
    print(diff(f->first, f->second), f->json);
  });
}

}  // namespace kvasir::tool
