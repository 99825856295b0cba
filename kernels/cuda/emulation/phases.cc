// See phases.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/phases.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/emulation/fault.h"

namespace kvasir::cuda::emulation {

void merge(const Clocks& from, Clocks& into) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Phases::Counter& Phases::counter(const void* barrier) {
  const auto found = counters_.find(barrier);
  if (found == counters_.end())
    throw Fault(FaultKind::kBarrier, "a barrier of phases is used that nobody has initialised");
  return found->second;
}

void Phases::init(const void* barrier, uint32_t n_threads) {
  if (counters_.count(barrier))
    throw Fault(FaultKind::kBarrier, "a barrier of phases is initialised twice");
  Counter& made = counters_[barrier];
  made.n_threads = made.n_missing = n_threads;
}

void Phases::arrive(const void* barrier, const Clocks& known) {
  Counter& c = counter(barrier);
  if (c.n_missing == 0) {
    throw Fault(FaultKind::kBarrier,
                "a thread comes to a barrier whose phase has not been waited for");
  }
  --c.n_missing;
  merge(known, c.known);
}

bool Phases::is_over(const void* barrier, uint32_t parity) {
  Counter& c = counter(barrier);
  if (c.n_ended % 2 == parity % 2 && c.n_missing == 0) {
    ++c.n_ended;
    c.n_missing = c.n_threads;
    c.last_known = std::exchange(c.known, {});
  }
  return c.n_ended % 2 != parity % 2;
}

std::string Phases::missing(const void* barrier) const {
  const Counter& c = counters_.at(barrier);
  return std::to_string(c.n_missing) + " of " + std::to_string(c.n_threads) +
         " threads have not come";
}

}  // namespace kvasir::cuda::emulation
