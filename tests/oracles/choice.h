// An oracle's choice with the scores behind it, and the judgement of what a runtime chose instead:
// single precision may order scores that lie within a tolerance of the threshold differently.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/oracles/primitives.h"

namespace kvasir::oracle {

struct Choice {
  Indices candidates;  // ascending
  Vector score;        // per candidate
  uint64_t n = 0;      // how many are taken: the best, of equal ones the lower index
  // What rounding errors are relative to: the size of the terms a score is the sum of. 0: the
  // largest finite |score|. kOfThreshold: the threshold itself, for sums of positive terms.
  double scale = 0;
  static constexpr double kOfThreshold = -1;
  // Whether equal scores are sums of the same terms in the same order, so that rounding keeps them
  // equal and the lower index must win.
  bool strict_ties = true;

  Indices chosen() const { return pick(candidates, top_k(score, n)); }
};

struct Verdict {
  bool admissible = false;
  uint32_t swapped = 0;  // items chosen although others rank above, all of them within tolerance;
                         // without those that are equal but for the order of their sums
  double worst = 0;      // largest |score - threshold| / scale of a swapped item
  std::string why;       // when not admissible
};

// `actual`, ascending, is admissible when it is of the right size, holds candidates only, and every
// item that differs from the oracle's choice scores within tolerance * scale of the threshold but
// not exactly on it: exact ties are decided by the lower index.
inline Verdict judge(const Choice& expected, const Indices& actual, double tolerance) {
  Verdict out;
  const Indices chosen = expected.chosen();
  if (actual == chosen) return {true, 0, 0, {}};
  const Indices foreign = without(actual, expected.candidates);
  if (!foreign.empty()) {
    out.why = "chose " + std::to_string(foreign[0]) + ", which is no candidate";
    return out;
  }
  if (actual.size() != chosen.size()) {
    out.why = "chose " + std::to_string(actual.size()) + ", not " + std::to_string(chosen.size());
    return out;
  }
  const auto score_of = [&](uint32_t item) {
    const auto at = std::lower_bound(expected.candidates.begin(), expected.candidates.end(), item);
    return expected.score[static_cast<size_t>(at - expected.candidates.begin())];
  };
  double scale = expected.scale;
  if (scale == 0)
    for (const double s : expected.score)
      if (std::isfinite(s)) scale = std::max(scale, std::abs(s));
  double threshold = kInfinity;  // the lowest score that was to be taken
  for (const uint32_t item : chosen)
    if (!std::isnan(score_of(item))) threshold = std::min(threshold, score_of(item));
  if (scale == Choice::kOfThreshold) scale = std::abs(threshold);
  const Indices added = without(actual, chosen), lost = without(chosen, actual);
  for (const Indices& side : {added, lost})
    for (const uint32_t item : side) {
      const double distance = std::abs(score_of(item) - threshold);
      if (!(distance <= tolerance * scale)) {
        out.why = "item " + std::to_string(item) + " scores " + std::to_string(score_of(item)) +
                  ", the threshold is " + std::to_string(threshold);
        return out;
      }
      out.worst = std::max(out.worst, scale > 0 ? distance / scale : 0);
    }
  // Exact ties: of two items with the same score the lower index wins.
  for (const uint32_t in : added)
    for (const uint32_t gone : lost)
      if (expected.strict_ties && score_of(in) == score_of(gone) && gone < in) {
        out.why = "items " + std::to_string(gone) + " and " + std::to_string(in) +
                  " are equal; the lower one wins";
        return out;
      }
  out.admissible = true;
  constexpr double kRounding = 1e-13;  // equal up to the oracle's own rounding
  for (const uint32_t item : added)
    out.swapped += std::abs(score_of(item) - threshold) > kRounding * scale ? 1 : 0;
  return out;
}

}  // namespace kvasir::oracle
