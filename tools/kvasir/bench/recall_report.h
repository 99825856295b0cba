// What `kvasir bench recall` reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/kvasir/bench/recall_bench.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

struct RecallReport {
  RecallShape shape;
  RecallSettings settings;
  double target = 0;  // tokens per kv head and step
  uint64_t seed = 0;
  std::vector<RecallResult> strategies;
};

Json to_json(const RecallReport& report);
std::string to_text(const RecallReport& report);

}  // namespace kvasir::tool
