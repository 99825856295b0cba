// Columns of the table of verdicts.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

struct Column {
  const char* name;
  bool is_number;
  std::string (*text)(const AbSummary&, const AbCell&);
};

bool is_compared(const AbCell& c) { return !c.is_dense && c.pairs.pairs.n > 0; }
std::string percent(double share) { return format("%.1f %%", 100 * share); }
std::string percent_or_nothing(const std::optional<double>& share) {
  return share ? percent(*share) : std::string();
}
std::string if_answered(const AbCell& c, const std::string& text) {
  return c.answers.n > 0 ? text : std::string();
}

// "31, 12": right answers to the first question, to the second, …
std::string by_question(const AbSummary&, const AbCell& c) {
  std::vector<std::string> right;
  for (const QuestionCell& q : c.questions) right.push_back(std::to_string(q.answers.right));
  return if_answered(c, join(right, ", "));
}

// "2.31 (2.20 - 2.45)"; without an interval where samples are too few for one.
std::string ratio(const std::optional<Spread>& spread) {
  if (!spread) return "";
  return format("%.2f", spread->median) +
         (spread->median_95
              ? format(" (%.2f - %.2f)", spread->median_95->low, spread->median_95->high)
              : std::string());
}

std::vector<Column> columns_of(const AbSummary& summary) {
  using S = const AbSummary&;
  using C = const AbCell&;
  std::vector<Column> out = {
      {"task", false, [](S, C c) { return c.task; }},
      {"length", true, [](S, C c) { return std::to_string(c.length); }},
      {"strategy", false, [](S, C c) { return c.label; }},
      {"right", true, [](S, C c) { return right_text(c); }},
      {"accuracy", true, [](S, C c) { return if_answered(c, percent(c.answers.value())); }}};
  if (summary.n_questions > 1) out.push_back({"by question", true, by_question});
  const std::vector<Column> against_dense = {
      {"lost", true,
       [](S, C c) { return is_compared(c) ? std::to_string(c.pairs.pairs.n_lost) : ""; }},
      {"won", true,
       [](S, C c) { return is_compared(c) ? std::to_string(c.pairs.pairs.n_won) : ""; }},
      {"difference", true,
       [](S s, C c) { return is_compared(c) ? points_text(s.difference(c)) : ""; }},
      {"against dense", false, verdict_words},
      {"oracle", true, [](S, C c) { return percent_or_nothing(c.oracle); }},
      {"random", true, [](S, C c) { return percent_or_nothing(c.random); }},
      {"attended", true,
       [](S, C c) { return if_answered(c, format("%.1f %%", c.attended_percent)); }},
      {"MB/step", true,
       [](S, C c) { return if_answered(c, format("%.3f", c.bytes_per_step / 1e6)); }},
      {"same top-1", true, [](S, C c) { return if_answered(c, percent(c.same_top1)); }},
      {"KL", true, [](S, C c) { return if_answered(c, format("%.4f", c.kl)); }}};
  out.insert(out.end(), against_dense.begin(), against_dense.end());
  if (summary.has_times()) {
    out.push_back({"prefill x", true, [](S, C c) { return ratio(c.prefill_ratio); }});
    out.push_back({"decode x", true, [](S, C c) { return ratio(c.decode_ratio); }});
  }
  return out;
}

}  // namespace

std::vector<std::string> verdict_header(const AbSummary& s) {
  std::vector<std::string> out;
  for (const Column& column : columns_of(s)) out.emplace_back(column.name);
  return out;
}

std::vector<size_t> verdict_numbers(const AbSummary& s) {
  std::vector<size_t> out;
  const std::vector<Column> columns = columns_of(s);
  for (size_t i = 0; i < columns.size(); ++i)
    if (columns[i].is_number) out.push_back(i);
  return out;
}

std::vector<std::string> verdict_row(const AbSummary& s, const AbCell& c) {
  std::vector<std::string> out;
  for (const Column& column : columns_of(s)) out.push_back(column.text(s, c));
  return out;
}

}  // namespace kvasir::tool
