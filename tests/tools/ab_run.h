// What the tests of kvasir ab share: records without their times, cells of a report.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <sstream>

#include "tests/tools/tiny_model.h"

namespace kvasir::test {

using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Records but for their times, which are the last two columns and no run's of another.
inline std::string without_times(const std::string& csv) {
  std::istringstream lines(csv);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    for (int i = 0; i < 2; ++i) line.erase(line.rfind(','));
    out += line + "\n";
  }
  return out;
}

inline nlohmann::json without_times(nlohmann::json report) {
  for (nlohmann::json& cell : report["cells"]) {
    cell.erase("prefill_speedup");
    cell.erase("decode_speedup");
  }
  return report;
}

inline nlohmann::json report_of(const std::string& run) {
  return nlohmann::json::parse(read_bytes(run + "/metrics.json"));
}

// The cell of a strategy: of the first task and length.
inline nlohmann::json cell_of(const nlohmann::json& report, const std::string& strategy) {
  for (const nlohmann::json& cell : report["cells"])
    if (cell["strategy"] == strategy) return cell;
  FAIL("no cell of " << strategy);
  return {};
}

inline size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace kvasir::test
