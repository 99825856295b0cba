// What a thread is asked to carry: for steps, which is urgent, or foreseen, and blocks to save when
// there is nothing to load.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/completion.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvasir::tiered {

// Of every job. Answer: what the one gets who waits for it.
template <class Answer_>
struct QueuedJob {
  using Answer = Answer_;
  uint64_t ticket = 0;
  std::shared_ptr<std::promise<Answer>> waiter{};  // others are reported
  std::vector<kvasir_status> status{};             // by request; the thread must not fail at it
  bool cancelled = false;
};

// The side of those who ask, for any thread. Who derives from it has the thread, which alone takes
// from the queues, and calls stop() in its destructor.
template <class Job>
class JobQueues {
 public:
  explicit JobQueues(const kvasir_completion* completion) : completion_(completion) {}
  JobQueues(const JobQueues&) = delete;
  JobQueues& operator=(const JobQueues&) = delete;

  void save(std::span<const uint64_t> handles) {  // in this order
    const std::lock_guard lock(mutex_);
    saves_.insert(saves_.end(), handles.begin(), handles.end());
    something_to_do_.notify_all();
  }
  // Until no more than n saves are in the queue, or for 30 s: what is slower than the computation
  // must not fill memory.
  void wait_for_saves(size_t n) {
    std::unique_lock lock(mutex_);
    saved_.wait_for(lock, kLongest, [&] { return saves_.size() <= n; });
  }
  void cancel(uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    for_each_job([&](Job& job) { job.cancelled |= !job.waiter && job.ticket == ticket; });
  }
  // Loads go on until the deadline; then the rest is cancelled. Returns when all are reported.
  void drain(uint64_t deadline_ms) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return urgent_.empty() && foreseen_.empty() && !reporting_; };
    if (idle_.wait_for(lock, std::chrono::milliseconds(deadline_ms), done)) return;
    for_each_job([](Job& job) { job.cancelled = true; });
    idle_.wait(lock, done);
  }

 protected:
  using Jobs = std::list<Job>;
  using Answer = typename Job::Answer;

  ~JobQueues() = default;
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    something_to_do_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void add(Job job, bool is_urgent) {
    const std::lock_guard lock(mutex_);
    (is_urgent ? urgent_ : foreseen_).push_back(std::move(job));
    something_to_do_.notify_all();
  }
  // Urgent, and without a ticket. Nothing: after 30 s it had not ended, and the rest is cancelled.
  std::optional<Answer> wait_for(Job job) {
    const auto waiter = std::make_shared<std::promise<Answer>>();
    std::future<Answer> done = waiter->get_future();
    job.waiter = waiter;
    add(std::move(job), true);
    if (done.wait_for(kLongest) == std::future_status::ready) return done.get();
    const std::lock_guard lock(mutex_);
    for_each_job([&](Job& other) { other.cancelled |= other.waiter == waiter; });
    return std::nullopt;
  }

  // All below: under the lock.
  template <class Fn>
  void for_each_job(const Fn& fn) {
    for (Jobs* queue : {&urgent_, &foreseen_})
      for (Job& job : *queue) fn(job);
  }
  // Of one that has ended and left its queue; gives the lock away while the host is told.
  void report(const Job& job, Answer answer, uint64_t n_bytes, std::unique_lock<std::mutex>& lock) {
    if (job.waiter) {
      job.waiter->set_value(std::move(answer));
      return idle_.notify_all();
    }
    kvasir_status whole = KVASIR_OK;
    for (const kvasir_status one : job.status)
      if (one != KVASIR_OK) whole = one;
    reporting_ = true;
    lock.unlock();
    completion_->complete(completion_->self, job.ticket, whole, job.status.data(),
                          static_cast<uint32_t>(job.status.size()), n_bytes);
    lock.lock();
    reporting_ = false;
    idle_.notify_all();
  }

  mutable std::mutex mutex_;  // of all below but the thread
  std::condition_variable something_to_do_, idle_, saved_;
  Jobs urgent_, foreseen_;
  std::deque<uint64_t> saves_;
  bool reporting_ = false, stopping_ = false;
  std::thread thread_;

 private:
  static constexpr auto kLongest = std::chrono::seconds(30);  // that a caller waits
  const kvasir_completion* completion_;
};

}  // namespace kvasir::tiered
