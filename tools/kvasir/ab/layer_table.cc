// What the arms of an A/B run capture, as a table and in words.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/kvasir/ab/summary_words.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

Table layer_table(const AbSummary& s) {
  Table table({"task", "length", "strategy", "captured mass", "exact choice", "least, in layer",
               "top-64 recall", "output error"},
              {1, 3, 4, 5, 6, 7});
  for (const AbCell& cell : s.cells) {
    if (cell.layers.empty()) continue;
    const LayerFigures mean = all_layers(cell);
    const auto least = std::min_element(
        cell.layers.begin(), cell.layers.end(),
        [](const LayerFigures& a, const LayerFigures& b) { return a.captured < b.captured; });
    table.add({cell.task, std::to_string(cell.length), cell.label,
               format("%.1f %%", 100 * mean.captured), format("%.1f %%", 100 * mean.exact),
               format("%.1f %%, %zu", 100 * least->captured,
                      static_cast<size_t>(least - cell.layers.begin()) + 1),
               format("%.1f %%", 100 * mean.recall), format("%.4f", mean.error)});
  }
  return table;
}

std::vector<std::string> layer_notes(const AbSummary& s) {
  const std::string why = s.declared.at("no_layers_because");
  if (!why.empty()) return {"Layers were not looked at: of this model " + why + "."};
  if (!s.has_layers()) return {};
  const uint32_t n = s.declared.at("layer_samples");
  return {
      "Captured mass: share of dense attention's mass on the tokens that an arm attends to, "
      "means over layers but the first and the decoded queries of " +
      (n == 1 ? std::string("one sample") : std::to_string(n) + " samples") +
      " of a task and length, on dense attention's queries and keys. Exact choice: of as many "
      "tokens at the arm's unit and scope. Top-64 recall: of the 64 tokens of largest mass. "
      "Output error: |output - dense output| / |dense output|."};
}

}  // namespace kvasir::tool
