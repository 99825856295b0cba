// A thread that brings blocks back and writes them away, and reports what it was asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/completion.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "plugins/storage/tiered/token_set.h"

namespace kvasir::tiered {

// What is to come back of a block.
struct Load {
  uint64_t handle = 0;  // 0: no such block
  TokenSet tokens;
};

// For any thread. One report per ticket, whatever happens.
class Transfers {
 public:
  // What the thread calls, with no lock held. Exceptions are taken: a load that throws has failed,
  // a save that throws was not made.
  class Work {
   public:
    virtual kvasir_status load(const Load& load, uint64_t& bytes) = 0;  // adds what it moved
    virtual void save(uint64_t handle) = 0;

   protected:
    ~Work() = default;
  };

  Transfers(Work& work, const kvasir_completion* completion)
      : work_(work), completion_(completion) {}
  ~Transfers();  // what is left of loads is reported as cancelled, saves are forgotten
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  void start();  // the thread, if it does not run yet; may throw
  // Urgent ones go first, also before the rest of a job that is not.
  void load(uint64_t ticket, std::vector<Load> loads, bool is_urgent);
  // The same, urgent, and without a ticket: waits until all are done. False: after 30 s they were
  // not, and the rest is cancelled.
  bool load_now(std::vector<Load> loads);
  void save(std::span<const uint64_t> handles);  // in this order, when there is nothing to load
  void cancel(uint64_t ticket);
  // Loads go on until the deadline; then the rest is cancelled. Returns when all are reported.
  void drain(uint64_t deadline_ms);

 private:
  struct Job {
    uint64_t ticket;
    std::vector<Load> loads;
    std::shared_ptr<std::promise<void>> waiter{};  // of load_now(); others are reported
    std::vector<kvasir_status> status{};           // of those that are done
    uint64_t bytes = 0;
    bool cancelled = false;
  };
  void add(std::deque<Job>& queue, Job job);
  void serve();
  void load_one(std::deque<Job>& queue, std::unique_lock<std::mutex>& lock);
  void report(Job job, std::unique_lock<std::mutex>& lock);
  void save_one(std::unique_lock<std::mutex>& lock);

  Work& work_;
  const kvasir_completion* completion_;
  std::mutex mutex_;  // of all below
  std::condition_variable something_to_do_, idle_;
  std::deque<Job> urgent_, foreseen_;  // the thread alone takes from them
  std::deque<uint64_t> saves_;
  bool reporting_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace kvasir::tiered
