// A thread for the second of two things that are to be done at the same time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace kvasir {

// It may run on every core of the process, and sleeps between calls.
class BesideThread {
 public:
  BesideThread();
  ~BesideThread();
  BesideThread(const BesideThread&) = delete;
  BesideThread& operator=(const BesideThread&) = delete;

  // here() on the calling thread, beside() on the other one; returns when both have ended. What
  // here() threw is rethrown, else what beside() threw. One call at a time.
  void run_both(const std::function<void()>& here, const std::function<void()>& beside);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;  // not ended yet
  std::exception_ptr failure_;                   // of the task that ended last
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace kvasir
