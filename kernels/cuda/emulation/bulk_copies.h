// The barriers of a block that count bytes, and the copies that are under way. Copies arrive when
// somebody waits for them, no sooner.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/emulation/memory.h"

namespace kvasir::cuda::emulation {

// Of each thread of the block a clock: its accesses before that are known to come first. A thread
// behind the end has 0.
using Clocks = std::vector<uint32_t>;
// Each the later of the two.
void merge(const Clocks& from, Clocks& into);

// Barriers are named by their addresses. Throws Fault where one is used that does not exist.
class BulkCopies {
 public:
  void init(const void* barrier, uint32_t n_threads, const Moment& by);
  // Those that the thread has initialised.
  void show(const Moment& by);
  void expect(const void* barrier, uint64_t bytes);
  // A thread comes without bytes: up to which clock it knows each thread's accesses to be before
  // it.
  void arrive(const void* barrier, const Clocks& known);
  // Returns who writes its bytes: the copy engine, in the phase that is open.
  Moment add(const void* barrier, uint64_t bytes, std::function<void()> copy);

  // Whether the phase of that parity has ended; where it has not, what is under way arrives.
  bool is_over(const void* barrier, uint32_t parity);
  // The thread has waited for the phase that ended last.
  void remember_waiter(const void* barrier, const Moment& waiter);
  // What those knew who came by arrive() to the phase that ended last.
  const Clocks& arrived(const void* barrier) { return counter(barrier).last_known; }
  // Whether there are barriers.
  bool are_used() const { return !counters_.empty(); }
  // Whether the running thread comes behind somebody who waited for what the engine wrote.
  bool is_waited_for(const Moment& written, const Block& block) const;

  // What the phase that is open waits for, for messages.
  std::string missing(const void* barrier) const;
  // Throws Fault where copies are under way that nobody has waited for.
  void check_none_left() const;

 private:
  struct Copy {
    uint64_t bytes;
    std::function<void()> run;
  };
  struct Counter {
    uint32_t n_threads = 0, n_missing = 0;
    int64_t bytes_missing = 0;
    uint32_t n_ended = 0;         // phases
    uint32_t open = 0, last = 0;  // of waiters_; `last` where one has ended
    uint32_t by_thread = 0;       // that initialised it
    bool is_shown = false;
    std::vector<Copy> copies;
    Clocks known, last_known;  // of those who came to the open phase, and to the last
  };
  Counter& counter(const void* barrier);
  void open_phase(Counter& counter);

  std::map<const void*, Counter> counters_;
  std::vector<std::vector<Moment>> waiters_;  // per phase of any barrier
};

}  // namespace kvasir::cuda::emulation
