// See bulk_copies.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/bulk_copies.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/emulation/fault.h"

namespace kvasir::cuda::emulation {

void merge(const Clocks& from, Clocks& into) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

BulkCopies::Counter& BulkCopies::counter(const void* barrier) {
  const auto found = counters_.find(barrier);
  if (found == counters_.end())
    throw Fault(FaultKind::kBarrier, "a barrier of copies is used that nobody has initialised");
  return found->second;
}

void BulkCopies::open_phase(Counter& counter) {
  counter.n_missing = counter.n_threads;
  counter.open = static_cast<uint32_t>(waiters_.size());
  waiters_.emplace_back();
}

void BulkCopies::init(const void* barrier, uint32_t n_threads, const Moment& by) {
  if (counters_.count(barrier))
    throw Fault(FaultKind::kBarrier, "a barrier of copies is initialised twice");
  Counter& made = counters_[barrier];
  made.n_threads = n_threads;
  made.by_thread = by.thread;
  open_phase(made);
}

void BulkCopies::show(const Moment& by) {
  for (auto& [barrier, made] : counters_)
    if (made.by_thread == by.thread) made.is_shown = true;
}

void BulkCopies::expect(const void* barrier, uint64_t bytes) {
  Counter& c = counter(barrier);
  if (c.n_missing == 0) {
    throw Fault(FaultKind::kBarrier,
                "bytes are expected at a barrier whose phase has not been waited for");
  }
  --c.n_missing;
  c.bytes_missing += static_cast<int64_t>(bytes);
}

void BulkCopies::arrive(const void* barrier, const Clocks& known) {
  expect(barrier, 0);
  merge(known, counter(barrier).known);
}

Moment BulkCopies::add(const void* barrier, uint64_t bytes, std::function<void()> copy) {
  Counter& c = counter(barrier);
  if (!c.is_shown) {
    throw Fault(FaultKind::kRace,
                "a copy names a barrier that show_barriers() has not shown to the copy engine");
  }
  c.copies.push_back({bytes, std::move(copy)});
  Moment out = Block::running()->moment();
  out.thread = kCopyEngine;
  out.clock = c.open;
  return out;
}

bool BulkCopies::is_over(const void* barrier, uint32_t parity) {
  Counter& c = counter(barrier);
  if (c.n_ended % 2 != parity % 2) return true;
  for (const Copy& copy : c.copies) {
    copy.run();
    c.bytes_missing -= static_cast<int64_t>(copy.bytes);
  }
  c.copies.clear();
  if (c.n_missing == 0 && c.bytes_missing == 0) {
    ++c.n_ended;
    c.last = c.open;
    c.last_known = std::exchange(c.known, {});
    open_phase(c);
  }
  return c.n_ended % 2 != parity % 2;
}

void BulkCopies::remember_waiter(const void* barrier, const Moment& waiter) {
  const Counter& c = counter(barrier);
  if (c.n_ended != 0) waiters_[c.last].push_back(waiter);
}

bool BulkCopies::is_waited_for(const Moment& written, const Block& block) const {
  const std::vector<Moment>& waiters = waiters_[written.clock];
  return std::any_of(waiters.begin(), waiters.end(),
                     [&](const Moment& waiter) { return block.is_ordered(waiter); });
}

std::string BulkCopies::missing(const void* barrier) const {
  const Counter& c = counters_.at(barrier);
  if (c.n_missing != 0)
    return std::to_string(c.n_missing) + " of " + std::to_string(c.n_threads) +
           " threads have not said what they expect";
  if (c.bytes_missing > 0)
    return std::to_string(c.bytes_missing) + " bytes more are expected than are copied";
  return std::to_string(-c.bytes_missing) + " bytes more are copied than are expected";
}

void BulkCopies::check_none_left() const {
  for (const auto& [barrier, c] : counters_) {
    if (c.copies.empty()) continue;
    throw Fault(FaultKind::kRace, "a block ends while copies into its shared memory are under way");
  }
}

}  // namespace kvasir::cuda::emulation
