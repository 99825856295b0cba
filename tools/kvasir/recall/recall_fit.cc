// See recall_fit.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvasir::tool {
namespace {

constexpr int kMostRuns = 12;            // to find a budget
constexpr double kShareStep = 1.0 / 64;  // of a share's range: where halving ends

class Search {
 public:
  Search(const std::vector<FitKnob>& knobs,
         const std::function<double(const std::vector<double>&)>& attended, double target,
         double tolerance)
      : knobs_(knobs), attended_(attended), target_(target), tolerance_(tolerance) {
    for (const FitKnob& knob : knobs) values_.push_back(knob.start);
  }

  Fit run() {
    if (budget(knobs_[0].start)) return {values_, true};
    const double end = too_many_ ? knobs_[0].low : knobs_[0].high;
    for (size_t i = 1; i < knobs_.size(); ++i) {
      values_[0] = end;
      if (share(i) || (below_ && budget(knobs_[0].low))) return {values_, true};
      values_[i] = knobs_[i].start;
    }
    Fit none;
    for (const FitKnob& knob : knobs_) none.values.push_back(knob.start);
    return none;
  }

 private:
  double ask(size_t knob, double value) {
    values_[knob] = value;
    return attended_(values_);
  }
  bool hits(double tokens) const { return std::abs(tokens - target_) <= tolerance_; }

  // Searches between the largest budget known to be too small and the smallest known to be too
  // large. The next budget is where the line through the last two meets the target. That may
  // converge slowly, so every third budget is the middle.
  bool budget(double start) {
    double low = knobs_[0].low, high = knobs_[0].high, slope = 1.0;
    std::optional<double> at_low, at_high;
    double at = std::clamp(start, low, high), before = 0.0, tokens_before = 0.0;
    for (int i = 0; i < kMostRuns; ++i) {
      const double tokens = ask(0, at);
      if (hits(tokens)) return true;
      too_many_ = tokens > target_;
      if (at == (too_many_ ? knobs_[0].low : knobs_[0].high)) return false;
      (too_many_ ? high : low) = at;
      (too_many_ ? at_high : at_low) = tokens;
      if (i > 0 && tokens != tokens_before)
        slope = std::max((tokens - tokens_before) / (at - before), 0.01);
      before = at;
      tokens_before = tokens;
      // The next budget lies strictly between those tried; an end of the range may still be tried.
      const double first = at_low ? low + 1.0 : low, last = at_high ? high - 1.0 : high;
      if (first > last) return false;
      double next = std::min(at + (target_ - tokens) / slope, 4.0 * at + 1.0);
      if (i % 3 == 2 || (at_low && at_high && (next <= low || next >= high)))
        next = (first + last) / 2.0;
      at = std::clamp(std::round(next), first, last);
    }
    return false;
  }

  // Searches by halving the range. When it fails, the share keeps the value that came nearest to
  // the target from below, if there is one, and the budget can make up for the rest.
  bool share(size_t i) {
    below_ = false;
    const FitKnob& knob = knobs_[i];
    double low = knob.low, high = knob.high;
    const double at_low = ask(i, low), at_high = ask(i, high);
    if ((at_low < target_) == (at_high < target_)) return false;
    const bool rises = at_low < at_high;
    std::optional<double> nearest;  // the last value that gave too few tokens
    while (high - low > kShareStep * (knob.high - knob.low)) {
      const double at = (low + high) / 2.0, tokens = ask(i, at);
      if (tokens != at_low && tokens != at_high) {
        if (hits(tokens)) return true;
        if (tokens < target_) nearest = at;
      }
      ((tokens < target_) == rises ? low : high) = at;
    }
    below_ = nearest.has_value();
    if (below_) values_[i] = *nearest;
    return false;
  }

  const std::vector<FitKnob>& knobs_;
  const std::function<double(const std::vector<double>&)>& attended_;
  const double target_, tolerance_;
  std::vector<double> values_;
  bool too_many_ = false;  // the last budget tried was too large
  bool below_ = false;     // a share keeps a value that gives too few tokens
};

}  // namespace

Fit fit(const std::vector<FitKnob>& knobs,
        const std::function<double(const std::vector<double>& values)>& attended, double target,
        double tolerance) {
  return Search(knobs, attended, target, tolerance).run();
}

}  // namespace kvasir::tool
