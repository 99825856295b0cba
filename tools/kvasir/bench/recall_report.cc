// See recall_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/recall_report.h"

#include <cmath>

#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {
namespace {

const char* name_of(RecallScope scope) {
  if (scope == RecallScope::kSequence) return "sequence";
  return scope == RecallScope::kKvHead ? "kv head" : "query head";
}

const char* unit_name(const RecallResult& r) {
  return r.choice.unit_tokens == 1 ? "token" : "block";
}

Json result_json(const RecallResult& r) {
  Json settings = Json::object();
  for (const auto& [key, value] : r.settings) {
    if (value == std::floor(value))
      settings[key] = static_cast<uint64_t>(value);
    else
      settings[key] = value;
  }
  return {{"strategy", r.label},
          {"unit", unit_name(r)},
          {"scope", name_of(r.choice.scope)},
          {"settings", settings},
          {"tolerance_tokens", r.tolerance},
          {"at_target", r.at_target},
          {"note", r.note.empty() ? Json(nullptr) : Json(r.note)},
          {"runs", r.n_runs},
          {"tokens_attended", r.figures.attended},
          {"captured_mass", r.figures.captured},
          {"best_mass", r.figures.best},
          {"random_mass", r.figures.random},
          {"random_deviation", r.figures.random_deviation},
          {"needle_recall", r.figures.needles},
          {"top_k_recall", r.figures.top_k},
          {"output_error", r.figures.error},
          {"kv_bytes", r.kv_bytes},
          {"fallbacks", r.fallbacks}};
}

std::string percent(double share) { return format("%.1f %%", 100.0 * share); }

// `label`: with the mark of its note.
std::vector<std::string> table_row(const RecallResult& r, const std::string& label) {
  const RecallFigures& f = r.figures;
  return {label,
          unit_name(r),
          name_of(r.choice.scope),
          format("%.0f", f.attended),
          percent(f.captured),
          percent(f.best),
          format("%.1f +- %.1f %%", 100.0 * f.random, 100.0 * f.random_deviation),
          percent(f.needles),
          percent(f.top_k),
          format("%.4f", f.error),
          bytes_text(r.kv_bytes),
          std::to_string(r.fallbacks)};
}

std::string legend_text(const RecallReport& r) {
  const RecallSettings& s = r.settings;
  return format(
      "\nattended: tokens per kv head and step. Wanted: %.0f (sink %u + window %u + budget %u), "
      "to\n"
      "within 2 %%, or a block of %u where blocks are chosen. Where budget_tokens = %u gives\n"
      "another number, settings that give this one were searched. best, random: captured mass of\n"
      "an exact and of a random choice (+- a draw's standard deviation) of as many tokens, of the\n"
      "same unit and scope, beside the same sink and window. Sets of query heads are attended, "
      "and\n"
      "count, as their union per kv head.\n",
      r.target, s.sink, s.window, s.budget, s.block_size, s.budget);
}

}  // namespace

Json to_json(const RecallReport& r) {
  const RecallShape& s = r.shape;
  Json out{{"context", s.context},
           {"budget_tokens", r.settings.budget},
           {"tokens_target", r.target},
           {"steps", s.steps},
           {"needles", s.needles},
           {"needle_mass", s.needle_mass},
           {"layers", s.n_layers},
           {"q_heads", s.n_q_heads},
           {"kv_heads", s.n_kv_heads},
           {"head_dim", s.head_dim},
           {"block_size", r.settings.block_size},
           {"sink_tokens", s.sink},
           {"window_tokens", s.window},
           {"seed", r.seed},
           {"strategies", Json::array()}};
  for (const RecallResult& result : r.strategies) out["strategies"].push_back(result_json(result));
  return out;
}

std::string to_text(const RecallReport& r) {
  const RecallShape& s = r.shape;
  Table table({"strategy", "unit", "scope", "attended", "captured mass", "best", "random",
               "needle recall", "top-k recall", "output error", "K+V held", "fallbacks"},
              {3, 4, 5, 6, 7, 8, 9, 10, 11});
  std::string notes;
  uint32_t n_notes = 0;
  for (const RecallResult& result : r.strategies) {
    std::string label = result.label;
    if (!result.note.empty()) {
      const std::string mark = format("[%u]", ++n_notes);
      notes += mark + " " + label + ": " + result.note + "\n";
      label += " " + mark;
    }
    table.add(table_row(result, label));
  }
  return format(
             "%u tokens, %u needles with %.0f %% of the attention mass, %u queries decoded; "
             "%u layers, %u query heads on %u, head_dim %u\n\n",
             s.context, s.needles, 100.0 * s.needle_mass, s.steps, s.n_layers, s.n_q_heads,
             s.n_kv_heads, s.head_dim) +
         table.text() + legend_text(r) + (notes.empty() ? "" : "\n" + notes);
}

}  // namespace kvasir::tool
