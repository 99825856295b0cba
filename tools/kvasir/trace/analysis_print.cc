// The figures of a trace as a table and as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/trace/analysis.h"

namespace kvasir::tool {
namespace {

std::string percent(double share) { return format("%.1f %%", 100.0 * share); }

std::string maybe(const std::optional<double>& value, std::string (*text)(double)) {
  return value ? text(*value) : "";
}

std::string two_digits(double value) { return format("%.2f", value); }

Json to_json(const LayerAnalysis& a) {
  return {{"layer", a.layer},
          {"first_mass", a.first_mass},
          {"last_mass", a.last_mass},
          {"tokens_of_90_percent", a.tokens_of_90},
          {"below_1_percent", a.below_1_percent},
          {"accumulated_top_5_percent", a.accumulated_top_5},
          {"heaviest_stayed", json_or_null(a.stayed)},
          {"heaviest_returned", json_or_null(a.returned)},
          {"query_cosine", json_or_null(a.query_cosine)},
          {"key_outlier", a.key_outlier},
          {"input_cosine", json_or_null(a.input_cosine)},
          {"ahead_cosine", json_or_null(a.ahead_cosine)},
          {"ahead_recall", json_or_null(a.ahead_recall)}};
}

std::string layer_table(const TraceAnalysis& a) {
  Table table({"layer", "first 4", "last 64", "90 % in", "below 1 %", "top 5 % hold", "stay",
               "return", "query cos", "key outlier", "input cos", "ahead cos", "ahead finds"},
              {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  for (const LayerAnalysis& l : a.layers)
    table.add({std::to_string(l.layer), percent(l.first_mass), percent(l.last_mass),
               percent(l.tokens_of_90), percent(l.below_1_percent), percent(l.accumulated_top_5),
               maybe(l.stayed, percent), maybe(l.returned, percent),
               maybe(l.query_cosine, two_digits), two_digits(l.key_outlier),
               maybe(l.input_cosine, two_digits), maybe(l.ahead_cosine, two_digits),
               maybe(l.ahead_recall, percent)});
  return table.text();
}

std::string length_table(const TraceAnalysis& a) {
  if (a.lengths.empty()) return "";
  Table table({"tokens seen", "90 % in", "below 1 %"}, {0, 1, 2});
  for (const LengthAnalysis& l : a.lengths)
    table.add({std::to_string(l.n_tokens), percent(l.tokens_of_90), percent(l.below_1_percent)});
  return "\n" + table.text();
}

constexpr const char* kLegend =
    "\nMeans over query heads and decoded queries. first 4, last 64: attention mass on the first "
    "and\n"
    "the last tokens. 90 % in: share of the tokens that hold 90 % of the mass. below 1 %: tokens "
    "whose\n"
    "mass is below 1 % of the heaviest one's. top 5 % hold: of the mass added up over the decoded\n"
    "queries. stay: of the 64 heaviest tokens of a query, those that were among them one token\n"
    "before; return: those that were not, but earlier. query cos: a query with the one before it. "
    "key outlier: largest mean |k| of a channel "
    "over\n"
    "the median channel, before rotation. input cos: a layer's input with the input of the layer "
    "before.\n"
    "ahead cos, ahead finds: the query with the one projected from the input of the layer before, "
    "and\n"
    "the share of its 64 heaviest tokens that the latter's 64 heaviest contain.\n";

}  // namespace

Json to_json(const TraceAnalysis& a) {
  Json out{{"file", a.file},          {"model", a.header.model}, {"context", a.header.context},
           {"steps", a.header.steps}, {"layers", Json::array()}, {"lengths", Json::array()}};
  for (const LayerAnalysis& layer : a.layers) out["layers"].push_back(to_json(layer));
  for (const LengthAnalysis& l : a.lengths)
    out["lengths"].push_back({{"tokens", l.n_tokens},
                              {"tokens_of_90_percent", l.tokens_of_90},
                              {"below_1_percent", l.below_1_percent}});
  return out;
}

std::string to_text(const TraceAnalysis& a) {
  return format("%s: %u tokens of %s, %u queries decoded, %u query heads\n\n", a.file.c_str(),
                a.header.context, a.header.model.c_str(), a.header.steps, a.header.n_q_heads) +
         layer_table(a) + length_table(a) + kLegend;
}

}  // namespace kvasir::tool
