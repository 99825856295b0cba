// The phases of a block's barriers, and what those knew who came to them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvasir::cuda::emulation {

// Of each thread of the block a clock: its accesses before that are known to come first. A thread
// behind the end has 0.
using Clocks = std::vector<uint32_t>;
// Each the later of the two.
void merge(const Clocks& from, Clocks& into);

// Barriers are named by their addresses. Throws Fault where one is used that does not exist.
class Phases {
 public:
  void init(const void* barrier, uint32_t n_threads);
  // A thread comes: up to which clock it knows each thread's accesses to be before it.
  void arrive(const void* barrier, const Clocks& known);
  // Whether the phase of that parity has ended. It ends when somebody waits for it, no sooner.
  bool is_over(const void* barrier, uint32_t parity);
  // What those knew who came to the phase that ended last.
  const Clocks& arrived(const void* barrier) { return counter(barrier).last_known; }
  // Whether there are barriers.
  bool are_used() const { return !counters_.empty(); }
  // Who has not come to the phase that is open, for messages.
  std::string missing(const void* barrier) const;

 private:
  struct Counter {
    uint32_t n_threads = 0, n_missing = 0;
    uint32_t n_ended = 0;      // phases
    Clocks known, last_known;  // of those who came to the open phase, and to the last
  };
  Counter& counter(const void* barrier);

  std::map<const void*, Counter> counters_;
};

}  // namespace kvasir::cuda::emulation
