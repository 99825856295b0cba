// See transfers.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/transfers.h"

#include <chrono>
#include <new>
#include <utility>

namespace kvasir::tiered {
namespace {

constexpr auto kLongest = std::chrono::seconds(30);  // that load_now() waits

}  // namespace

Transfers::~Transfers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_to_do_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Transfers::start() {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
}

void Transfers::load(uint64_t ticket, std::vector<Load> loads, bool is_urgent) {
  add(is_urgent ? urgent_ : foreseen_, {ticket, std::move(loads)});
}

bool Transfers::load_now(std::vector<Load> loads) {
  const auto waiter = std::make_shared<std::promise<void>>();
  std::future<void> done = waiter->get_future();
  add(urgent_, {0, std::move(loads), waiter});
  if (done.wait_for(kLongest) == std::future_status::ready) return true;
  const std::lock_guard lock(mutex_);
  for (Job& job : urgent_) job.cancelled |= job.waiter == waiter;
  return false;
}

void Transfers::add(std::deque<Job>& queue, Job job) {
  job.status.reserve(job.loads.size());  // the thread must not fail at it
  const std::lock_guard lock(mutex_);
  queue.push_back(std::move(job));
  something_to_do_.notify_all();
}

void Transfers::save(std::span<const uint64_t> handles) {
  const std::lock_guard lock(mutex_);
  saves_.insert(saves_.end(), handles.begin(), handles.end());
  something_to_do_.notify_all();
}

void Transfers::cancel(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  for (std::deque<Job>* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled |= job.ticket == ticket;
}

void Transfers::drain(uint64_t deadline_ms) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return urgent_.empty() && foreseen_.empty() && !reporting_; };
  if (idle_.wait_for(lock, std::chrono::milliseconds(deadline_ms), done)) return;
  for (std::deque<Job>* queue : {&urgent_, &foreseen_})
    for (Job& job : *queue) job.cancelled = true;
  idle_.wait(lock, done);
}

void Transfers::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    something_to_do_.wait(lock, [&] {
      return stopping_ || !urgent_.empty() || !foreseen_.empty() || !saves_.empty();
    });
    if (!urgent_.empty()) {
      load_one(urgent_, lock);
    } else if (!foreseen_.empty()) {
      load_one(foreseen_, lock);
    } else if (stopping_) {
      return;
    } else {
      save_one(lock);
    }
  }
}

void Transfers::load_one(std::deque<Job>& queue, std::unique_lock<std::mutex>& lock) {
  Job& job = queue.front();  // stays there while others are appended
  if (job.status.size() < job.loads.size()) {
    const Load& load = job.loads[job.status.size()];
    kvasir_status status = KVASIR_ERR_CANCELLED;
    uint64_t bytes = 0;
    if (!job.cancelled && !stopping_) {
      lock.unlock();
      try {
        status = work_.load(load, bytes);
      } catch (const std::bad_alloc&) {
        status = KVASIR_ERR_OUT_OF_MEMORY;
      } catch (...) {
        status = KVASIR_ERR_IO;
      }
      lock.lock();
    }
    job.status.push_back(status);
    job.bytes += bytes;
  }
  if (job.status.size() < job.loads.size()) return;
  Job done = std::move(job);
  queue.pop_front();
  report(std::move(done), lock);
}

void Transfers::report(Job job, std::unique_lock<std::mutex>& lock) {
  if (job.waiter) {
    job.waiter->set_value();
    return idle_.notify_all();
  }
  kvasir_status whole = KVASIR_OK;
  for (const kvasir_status one : job.status)
    if (one != KVASIR_OK) whole = one;
  reporting_ = true;
  lock.unlock();
  completion_->complete(completion_->self, job.ticket, whole, job.status.data(),
                        static_cast<uint32_t>(job.status.size()), job.bytes);
  lock.lock();
  reporting_ = false;
  idle_.notify_all();
}

void Transfers::save_one(std::unique_lock<std::mutex>& lock) {
  const uint64_t handle = saves_.front();
  saves_.pop_front();
  lock.unlock();
  try {
    work_.save(handle);
  } catch (...) {  // the block stays in memory
  }
  lock.lock();
}

}  // namespace kvasir::tiered
