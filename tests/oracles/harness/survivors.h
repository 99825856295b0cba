// What a method that drops or masks tokens has left of one kv head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/harness/duel.h"

namespace kvasir::oracle {

// Tokens [0, sink_end) and [window_begin, …) of `forced` are there, and of those between, the
// choice: still to be judged after plan(), known after settle().
struct Survivors {
  Forced forced;  // {0, 0}: everything is there
  Choice choice;

  // What is lost stays lost, though after a cut the window reaches back to it.
  void plan(Forced always, Choice best) {
    for (const uint32_t t : choice.chosen()) {
      if (t < std::max(always.sink_end, always.window_begin)) continue;
      best.candidates.push_back(t);
      best.score.push_back(kInfinity);
      ++best.n;
    }
    always.window_begin = std::max(always.window_begin, forced.window_begin);
    forced = always;
    choice = std::move(best);
  }
  Expected expected() const { return {forced, 1, choice}; }
  // Of a sequence of n tokens.
  Indices tokens(uint32_t n) const { return with_forced(forced, choice.chosen(), n); }
  // From `known_end` on, tokens are attended whether they are lost or not.
  void settle(const Indices& attended, uint32_t known_end = UINT32_MAX) {
    Indices left;
    for (const uint32_t t : attended)
      if (t >= forced.sink_end && t < std::min(forced.window_begin, known_end)) left.push_back(t);
    for (const uint32_t t : choice.chosen())
      if (t >= known_end) left.push_back(t);
    choice = {left, Vector(left.size(), 0.0), left.size(), 0};
  }
  // New tokens at n and beyond are there whatever stood there before.
  void truncate(uint32_t n) {
    const auto below = [&](const Indices& list) {
      return static_cast<size_t>(std::lower_bound(list.begin(), list.end(), n) - list.begin());
    };
    choice.n = below(choice.chosen());
    const size_t left = below(choice.candidates);
    choice.candidates.resize(left);
    choice.score.resize(left);
    forced.window_begin = std::min(forced.window_begin, n);
    forced.sink_end = std::min(forced.sink_end, n);
  }
  bool lacks_any_from(uint32_t n) const {
    const Indices gone = without(range(forced.sink_end, forced.window_begin), choice.chosen());
    return !gone.empty() && gone.back() >= n;
  }
};

// Whether a sequence all of whose heads are `heads`, [layer][kv_head], can be cut to n tokens, when
// what they lack is gone for good. What lies before the window may have been closed up.
inline Follower::Cut cut_of_dropped(const std::vector<std::vector<Survivors>>& heads, uint32_t n,
                                    uint32_t window_begin) {
  bool lacks = false;
  for (const auto& layer : heads)
    for (const Survivors& head : layer) {
      if (head.lacks_any_from(n)) return Follower::Cut::kRefused;
      lacks = lacks || head.lacks_any_from(0);
    }
  return !lacks || n >= window_begin ? Follower::Cut::kPossible : Follower::Cut::kEither;
}

}  // namespace kvasir::oracle
