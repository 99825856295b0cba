// See recall_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_report.h"

#include <cmath>
#include <functional>

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

Json layers_json(const std::vector<RecallFigures>& layers) {
  Json out = Json::array();
  for (const RecallFigures& f : layers)
    out.push_back({{"tokens_attended", f.attended},
                   {"captured_mass", f.captured},
                   {"best_mass", f.best},
                   {"random_mass", f.random},
                   {"top_k_recall", f.top_k},
                   {"output_error", f.error}});
  return out;
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
          {"fallbacks", r.fallbacks},
          {"layers", layers_json(r.layers)}};
}

std::string percent(double share) { return format("%.1f %%", 100.0 * share); }

struct Column {
  const char* name;
  bool is_number;
  std::function<std::string(const RecallResult&)> cell;
};

// Behind the strategy's name.
std::vector<Column> columns_of(const RecallReport& report) {
  std::vector<Column> columns{
      {"unit", false, [](const RecallResult& r) { return std::string(unit_name(r)); }},
      {"scope", false, [](const RecallResult& r) { return std::string(name_of(r.choice.scope)); }},
      {"attended", true, [](const RecallResult& r) { return format("%.0f", r.figures.attended); }},
      {"captured mass", true, [](const RecallResult& r) { return percent(r.figures.captured); }},
      {"best", true, [](const RecallResult& r) { return percent(r.figures.best); }},
      {"random", true, [](const RecallResult& r) {
         return format("%.1f +- %.1f %%", 100.0 * r.figures.random,
                       100.0 * r.figures.random_deviation);
       }}};
  if (report.planted)
    columns.push_back(
        {"needle recall", true, [](const RecallResult& r) { return percent(r.figures.needles); }});
  columns.push_back(
      {"top-k recall", true, [](const RecallResult& r) { return percent(r.figures.top_k); }});
  columns.push_back({"output error", true,
                     [](const RecallResult& r) { return format("%.4f", r.figures.error); }});
  columns.push_back(
      {"K+V held", true, [](const RecallResult& r) { return bytes_text(r.kv_bytes); }});
  columns.push_back(
      {"fallbacks", true, [](const RecallResult& r) { return std::to_string(r.fallbacks); }});
  return columns;
}

std::string source_text(const RecallReport& r) {
  const RecallShape& s = r.shape;
  const std::string heads =
      format("%u query heads on %u, head_dim %u\n\n", s.n_q_heads, s.n_kv_heads, s.head_dim);
  if (r.planted)
    return format("%u tokens, %u needles with %.0f %% of the attention mass, %u queries decoded; ",
                  s.context, r.planted->needles, 100.0 * r.planted->needle_mass, s.steps) +
           format("%u layers, ", s.n_layers) + heads;
  return format(
             "%s: %u tokens of %s, %u queries decoded; %zu layers (%u is dense and does not "
             "count), ",
             r.recorded->file.c_str(), s.context, r.recorded->model.c_str(), s.steps,
             r.recorded->layers.size(), r.recorded->layers.front()) +
         heads;
}

// Adds what tells made-up data from recorded ones.
void add_source(const RecallReport& r, Json& out) {
  if (r.planted) {
    out["needles"] = r.planted->needles;
    out["needle_mass"] = r.planted->needle_mass;
    out["drift"] = r.planted->drift;
    out["rehearsal"] = r.planted->rehearsal;
  } else {
    out["trace"] = r.recorded->file;
    out["model"] = r.recorded->model;
    out["recorded_layers"] = r.recorded->layers;
  }
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

// Captured mass, a row for each layer that counts.
std::string layer_table(const RecallReport& r) {
  std::vector<std::string> header{"captured mass in layer"};
  std::vector<size_t> right{0};
  for (const RecallResult& result : r.strategies) {
    right.push_back(header.size());
    header.push_back(result.label);
  }
  Table table(header, right);
  for (uint32_t layer = 1; layer < r.shape.n_layers; ++layer) {
    std::vector<std::string> row{std::to_string(r.recorded ? r.recorded->layers[layer] : layer)};
    for (const RecallResult& result : r.strategies)
      row.push_back(percent(result.layers[layer - 1].captured));
    table.add(row);
  }
  return "\n" + table.text();
}

}  // namespace

Json to_json(const RecallReport& r) {
  const RecallShape& s = r.shape;
  Json out{{"context", s.context},
           {"budget_tokens", r.settings.budget},
           {"tokens_target", r.target},
           {"steps", s.steps}};
  add_source(r, out);
  out.update({{"layers", s.n_layers},
              {"q_heads", s.n_q_heads},
              {"kv_heads", s.n_kv_heads},
              {"head_dim", s.head_dim},
              {"block_size", r.settings.block_size},
              {"sink_tokens", s.sink},
              {"window_tokens", s.window},
              {"seed", r.seed},
              {"strategies", Json::array()}});
  for (const RecallResult& result : r.strategies) {
    Json one = result_json(result);
    if (r.recorded) one.erase("needle_recall");
    out["strategies"].push_back(one);
  }
  return out;
}

std::string to_text(const RecallReport& r) {
  const std::vector<Column> columns = columns_of(r);
  std::vector<std::string> header{"strategy"};
  std::vector<size_t> right;
  for (const Column& column : columns) {
    if (column.is_number) right.push_back(header.size());
    header.emplace_back(column.name);
  }
  Table table(header, right);
  std::string notes;
  uint32_t n_notes = 0;
  for (const RecallResult& result : r.strategies) {
    std::vector<std::string> row{result.label};
    if (!result.note.empty()) {
      const std::string mark = format("[%u]", ++n_notes);
      notes += mark + " " + result.label + ": " + result.note + "\n";
      row[0] += " " + mark;
    }
    for (const Column& column : columns) row.push_back(column.cell(result));
    table.add(row);
  }
  return source_text(r) + table.text() + (r.by_layer ? layer_table(r) : "") + legend_text(r) +
         (notes.empty() ? "" : "\n" + notes);
}

}  // namespace kvasir::tool
