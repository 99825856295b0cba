// What strategies over a RecallWorld are reported as.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/recall/made_up_world.h"
#include "tools/kvasir/recall/recall_bench.h"

namespace kvasir::tool {

struct Recorded {
  std::string file, model;
  std::vector<uint32_t> layers;  // of the model, in the order of the world's
};

struct RecallReport {
  RecallShape shape;
  // Where queries, keys and values come from: one of the two.
  std::optional<Planted> planted;
  std::optional<Recorded> recorded;
  RecallSettings settings{};
  double target = 0;  // tokens per kv head and step
  uint64_t seed = 0;
  bool by_layer = false;  // the text has a row for each layer, too
  std::vector<RecallResult> strategies;
};

Json to_json(const RecallReport& report);
std::string to_text(const RecallReport& report);

}  // namespace kvasir::tool
