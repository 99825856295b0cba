// What a duel found over all its cases, and whether that is enough.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "tests/oracles/harness/reach.h"

namespace kvasir::oracle {

struct Report {
  Reach reach;
  uint64_t steps = 0;    // per sequence
  uint64_t choices = 0;  // where something was left out
  uint64_t swapped = 0;  // items taken in place of others within tolerance
  double worst_swap = 0, worst_output = 0;
  std::map<std::string, uint64_t> option_choices;  // of `choices`, by Strategy::options
  std::string text() const;
};

// After all cases: they reach what is demanded, unless KVASIR_ORACLE_CASES or sanitizers make them
// few.
void check_reach(const Report& report, const std::string& name, const Demand& demand = {});
// And enough of them chose something, and swaps are as rare as near-ties are.
void conclude(const Report& report, const std::string& name, const Demand& demand = {});

}  // namespace kvasir::oracle
