// Settings under which a strategy attends to a wanted number of tokens, found by running it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

namespace kvasir::tool {

// One number that may be turned, from `low` to `high`; `start` is what it is now.
struct FitKnob {
  double low = 0, high = 0, start = 0;
};

struct Fit {
  std::vector<double> values;  // per knob; the starts when nothing was reached
  bool reached = false;
};

// Knob 0 is the budget, in whole tokens: more of it never means fewer tokens. The others are shares
// that bear on the number in one direction, whichever; they are turned, one at a time, only where
// the budget alone does not reach `target` within `tolerance`, and never to where one does the same
// as at an end of its range: that would be another strategy. `attended` runs the strategy and
// returns its tokens per kv head and step; it is asked again for values it was asked for before.
Fit fit(const std::vector<FitKnob>& knobs,
        const std::function<double(const std::vector<double>& values)>& attended, double target,
        double tolerance);

}  // namespace kvasir::tool
