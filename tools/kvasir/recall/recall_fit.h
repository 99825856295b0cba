// Finds settings with which a strategy attends to a wanted number of tokens, by running it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

namespace kvasir::tool {

// A number that the search may change, from `low` to `high`; `start` is its value now.
struct FitKnob {
  double low = 0, high = 0, start = 0;
};

struct Fit {
  std::vector<double> values;  // per knob; the starts when the target was not reached
  bool reached = false;
};

// `attended` runs the strategy with these values and returns the tokens it attends to per kv head
// and step. It may be called twice with the same values.
//
// Knob 0 is the budget, in whole tokens: a larger budget never gives fewer tokens. The other knobs
// are shares. Raising one either never gives fewer tokens or never gives more; the search finds out
// which. It changes a share only when the budget alone does not come within `tolerance` of
// `target`, and one share at a time. It does not accept a share that gives as many tokens as an end
// of its range does: that would be another strategy.
Fit fit(const std::vector<FitKnob>& knobs,
        const std::function<double(const std::vector<double>& values)>& attended, double target,
        double tolerance);

}  // namespace kvasir::tool
