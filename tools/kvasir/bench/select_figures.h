// What `kvasir bench select` makes of its measurements: pure functions of numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace kvasir::tool {

// Of a series of steps: the middle of it and how far it strays.
struct Typical {
  double middle = 0;  // the median, in the unit of the series
  double spread = 0;  // from the first quartile to the third, as a share of the median
};
// A strategy that chooses at every `period`-th step only has dear steps and cheap ones, and the
// median of single steps would hide the dear ones: it is taken over the means of `period`
// successive steps. Steps that fill no group count only where they are all there is.
Typical typical(std::span<const double> steps, uint32_t period);

// What one decode step moves and computes at the least, in ms.
struct StepFloors {
  double choose_bytes = 0;       // what is read to choose, at the machine's read bandwidth
  double choose_arithmetic = 0;  // multiply-adds on it, at the machine's rate
  double attend_bytes = 0;       // K and V attended, at the machine's read bandwidth
  double choose() const {
    return choose_bytes > choose_arithmetic ? choose_bytes : choose_arithmetic;
  }
};
struct StepWork {              // of one decode step
  double bytes_to_choose = 0;  // counted once where the query heads of a group read together
  double kv_bytes = 0;
  double element_bytes = 0;  // of what is read to choose
  uint32_t group_size = 1;   // query heads per kv head: each multiplies every element once
};
// read_bandwidth in bytes/s, multiply_add_rate in multiply-adds/s.
StepFloors step_floors(const StepWork& work, double read_bandwidth, double multiply_add_rate);

// One strategy at one length of the prompt.
struct DepthRatio {
  uint32_t depth = 0;               // tokens
  double of_dense = 0;              // time of its step over that of the dense one
  bool attends_everything = false;  // it is dense there, whatever the ratio says
};
// cache.dense_below_tokens: the smallest depth at which, and at all larger ones of the list, the
// step is faster than the dense one. None where the largest depth is not faster. Depths ascend.
std::optional<uint32_t> propose_dense_below(std::span<const DepthRatio> depths);

}  // namespace kvasir::tool
