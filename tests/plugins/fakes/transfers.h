// A queue of transfers and the thread that serves it, for storages that prefetch: block by block,
// each ticket reported exactly once through kvasir.completion/1, also when cancelled.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/plugin.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir::test {

class Transfers {
 public:
  // Takes one block and says how that went; called under lock().
  using Fetch = std::function<kvasir_status(const kvasir_block_key&)>;

  // Not available when the host offers no completion service.
  Transfers(const sdk::Host& host, uint32_t max_blocks, uint32_t delay_us, Fetch fetch)
      : completion_(host.completion()),
        max_blocks_(max_blocks),
        delay_(delay_us),
        fetch_(std::move(fetch)) {}
  ~Transfers() {
    {
      const auto held = lock();
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void start() {
    if (thread_.joinable()) sdk::fail_invalid("bind() came twice");
    if (completion_) thread_ = std::thread([this] { serve(); });
  }
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  kvasir_status add(const sdk::BlockKeys& keys, uint64_t ticket, uint32_t& accepted) {
    accepted = 0;
    if (!completion_) throw sdk::Error(KVASIR_ERR_UNSUPPORTED, "the host reports no completions");
    const auto held = lock();
    Job job{ticket, false, {}};
    for (const kvasir_block_key& key : keys)
      if (n_queued_ < max_blocks_) job.keys.push_back(key), ++n_queued_;
    accepted = static_cast<uint32_t>(job.keys.size());
    if (accepted == 0) return KVASIR_AGAIN;  // nothing accepted: no report for this ticket
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return KVASIR_OK;
  }
  void cancel(uint64_t ticket) {
    const auto held = lock();
    for (Job& job : jobs_) job.is_cancelled |= job.ticket == ticket;
  }
  kvasir_status drain(uint64_t deadline_ms) {
    auto held = lock();
    return changed_.wait_for(held, std::chrono::milliseconds(deadline_ms),
                             [&] { return jobs_.empty(); })
               ? KVASIR_OK
               : KVASIR_AGAIN;
  }

 private:
  struct Job {
    uint64_t ticket;
    bool is_cancelled;
    std::vector<kvasir_block_key> keys;
  };

  void serve() {
    auto held = lock();
    for (;;) {
      changed_.wait(held, [&] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job& job = jobs_.front();  // a deque: stays where it is while others are added
      std::vector<kvasir_status> status;
      for (const kvasir_block_key& key : job.keys) {
        held.unlock();
        if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
        held.lock();
        status.push_back(job.is_cancelled ? KVASIR_ERR_CANCELLED : fetch_(key));
      }
      report(job, status, held);
      jobs_.pop_front();
      changed_.notify_all();
    }
  }
  void report(const Job& job, const std::vector<kvasir_status>& status,
              std::unique_lock<std::mutex>& held) {
    const auto n = static_cast<uint32_t>(status.size());
    kvasir_status whole = KVASIR_OK;
    for (const kvasir_status one : status) whole = one != KVASIR_OK ? one : whole;
    n_queued_ -= n;
    held.unlock();
    completion_->complete(completion_->self, job.ticket, whole, status.data(), n, n);
    held.lock();
  }

  const kvasir_completion* completion_;
  uint32_t max_blocks_, n_queued_ = 0;
  std::chrono::microseconds delay_;
  Fetch fetch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvasir::test
