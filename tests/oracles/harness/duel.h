// A strategy in the real runtime against its oracle: the same tokens go through the engine, with a
// backend that writes down what is attended, and through a follower that says what should be.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/oracles/choice.h"
#include "tests/oracles/harness/attended.h"
#include "tests/oracles/harness/cases.h"
#include "tests/oracles/harness/report.h"

namespace kvasir::oracle {

// What one kv head should attend to: forced tokens, and so many of the candidates.
struct Expected {
  Forced forced;
  uint32_t unit_tokens = 1;  // of choice: 1, or the block size
  Choice choice;
  // Where the count is part of the answer and lies near a threshold; else both are choice.n.
  uint64_t n_low = 0, n_high = 0;
  bool any_subset = false;  // of the candidates: the follower judges what was attended

  Expected(Forced always, uint32_t unit, Choice best)
      : forced(always),
        unit_tokens(unit),
        choice(std::move(best)),
        n_low(choice.n),
        n_high(choice.n) {}
};

// What a method knows about one sequence; it learns what was attended in fact, so that a near-tie
// decided the other way is no error in the steps that follow.
class Follower {
 public:
  virtual ~Follower() = default;
  virtual std::unique_ptr<Follower> clone() const = 0;
  // The prompt [track.prompt_begin(), size()) has been read.
  virtual void prompted(const Track&) {}
  // Decode: the last token of the track is the query.
  virtual Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) = 0;
  // Tokens attended in prefill by the chunk [from, to) of the track; all by default.
  virtual Indices expect_prefill(const Track& track, uint32_t layer, uint32_t kv_head,
                                 uint32_t from, uint32_t to);
  // What was attended, per kv head: units chosen among the candidates, and all tokens.
  struct Attended {
    std::vector<Indices> units, tokens;
    std::vector<std::vector<Vector>> weight;  // [kv_head][token][head of the group]; zeros: none
  };
  virtual void attended(const Track&, uint32_t /*layer*/, const Attended&) {}
  virtual void truncated(const Track&) {}
  // Whether the sequence can be cut to n tokens: not where a dropped token stood at n or beyond.
  // The runtime may also refuse inside blocks that it closed up after dropping.
  enum class Cut { kPossible, kRefused, kEither };
  virtual Cut cut(const Track&, uint32_t /*n*/) const { return Cut::kPossible; }
  // Methods that choose in prefill too, slice by slice: the queries [from, to) share a choice.
  virtual bool chooses_in_prefill() const { return false; }
  virtual Expected expect_slice(const Track& track, uint32_t layer, uint32_t kv_head, uint32_t from,
                                uint32_t to);
  virtual void attended_slice(const Track&, uint32_t /*layer*/, uint32_t /*from*/, uint32_t /*to*/,
                              const Attended&) {}
};

// toml: [selector] and further tables, [cache] keys beyond what `of` gives.
struct Strategy {
  std::string tables;
  std::string cache_keys;
  double tolerance = 1e-5;  // of scores, relative to their scale
  Placing placing = {};
  std::vector<std::string> options = {};  // those of Demand::options that the case has
};

// Runs the case; doctest checks report what disagrees, once per case.
void duel(const Case& of, const Strategy& strategy, std::unique_ptr<Follower> follower,
          Report& report);

}  // namespace kvasir::oracle
