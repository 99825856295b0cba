// Where the time of a step went: dense layers, plugins, the core between them, lane by lane.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/runtime/step/lane.h"

namespace kvasir {

class StepTimer {
 public:
  void begin(size_t n_lanes);
  // Runs fn as work of the dense layers.
  template <class Fn>
  void in_model(Fn&& fn) {
    const uint64_t start = now_nanos();
    fn();
    model_nanos_ += now_nanos() - start;
  }
  // Runs fn as work of the lane, whose plugins it may call; in_model() inside is not counted twice.
  template <class Fn>
  void in_lane(Lane& lane, Fn&& fn) {
    const Mark before = mark(lane);
    fn();
    add(lane, before);
  }
  // Runs fn, a part of the lane's work, and adds what it took to `nanos` of the lane.
  template <class Fn>
  static void in_part(uint64_t& nanos, Fn&& fn) {
    const uint64_t start = now_nanos();
    fn();
    nanos += now_nanos() - start;
  }
  // Adds the time since begin() to the counters of the lanes, model time by tokens.
  void account(std::vector<Lane>& lanes, uint32_t n_layers);

 private:
  struct Mark {
    CallStats plugins;
    uint64_t nanos, model_nanos, copied_bytes;
  };
  static uint64_t now_nanos() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
  }
  Mark mark(const Lane& lane) const;
  void add(Lane& lane, const Mark& before);
  // What a storage moved counts where it was moved for; strategies may share one.
  static void count_transfers(const Lane& lane);

  size_t n_lanes_ = 0;
  uint64_t begun_ = 0, model_nanos_ = 0;
};

}  // namespace kvasir
