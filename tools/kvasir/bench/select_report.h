// What `kvasir bench select` reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/kvasir/bench/select_bench.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

// Where a strategy pays.
struct SelectProposal {
  std::string strategy;
  std::optional<uint32_t> dense_below_tokens;
  uint32_t n_faster = 0;       // at that depth: SelectRow::n_faster
  bool never_chooses = false;  // attends to everything at every depth
};

struct SelectReport {
  Setup setup;
  double load_ms = 0;
  uint32_t n_steps = 0;
  MeasuredLimits limits;
  std::vector<uint32_t> depths;  // ascending
  std::vector<SelectRow> rows;   // [depths][strategies], dense first
  // One per strategy but the control.
  std::vector<SelectProposal> proposals() const;
};

// What the columns mean, for --help.
extern const char* const kSelectColumns;

Json to_json(const SelectReport& report);
std::string to_text(const SelectReport& report);
std::string to_line(const SelectRow& row);  // for progress

}  // namespace kvasir::tool
