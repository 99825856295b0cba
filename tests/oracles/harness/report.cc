// See report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/harness/report.h"

#include <doctest/doctest.h>

#include "tests/oracles/harness/cases.h"

namespace kvasir::oracle {

std::string Report::text() const {
  return std::to_string(reach.cases) + " cases, " + std::to_string(steps) + " steps, " +
         std::to_string(choices) + " real choices, " + std::to_string(swapped) +
         " swaps at near-ties (worst " + std::to_string(worst_swap) +
         " of the scale), outputs within " + std::to_string(worst_output);
}

void check_reach(const Report& report, const std::string& name, const Demand& demand) {
  MESSAGE(name, " reach: ", report.reach.text());
  std::string missing = report.reach.shortfall(demand), met;
  for (const std::string& option : demand.options) {
    const auto found = report.option_choices.find(option);
    const uint64_t n = found == report.option_choices.end() ? 0 : found->second;
    met.append(met.empty() ? "" : ", ").append(option).append(" in ").append(std::to_string(n));
    if (n < Demand::kOptionChoices)
      missing.append(missing.empty() ? "" : ", ").append("choices with ").append(option);
  }
  if (!met.empty()) MESSAGE(name, " choices by option: ", met);
  if (!are_cases_reduced()) CHECK_MESSAGE(missing.empty(), "not reached: ", missing);
}

void conclude(const Report& report, const std::string& name, const Demand& demand) {
  MESSAGE(name, ": ", report.text());
  check_reach(report, name, demand);
  CHECK(report.choices > report.reach.cases);
  CHECK(report.swapped * 50 <= report.choices);  // items; a choice has hundreds
  CHECK(report.worst_output < 1e-4);
}

}  // namespace kvasir::oracle
