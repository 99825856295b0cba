// See beside_thread.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/beside_thread.h"

#include <pthread.h>

#include <utility>

#include "core/platform/affinity.h"
#include "core/platform/signal_stack.h"

namespace kvasir {

BesideThread::BesideThread() {
  const OnAllCores inherited;
  thread_ = std::thread([this] {
    const SignalStack stack;
    pthread_setname_np(pthread_self(), "kvasir-beside");
    serve();
  });
}

BesideThread::~BesideThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BesideThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || task_; });
    if (!task_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*task_)();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    task_ = nullptr;
    changed_.notify_all();
  }
}

void BesideThread::run_both(const std::function<void()>& here,
                            const std::function<void()>& beside) {
  {
    const std::lock_guard lock(mutex_);
    task_ = &beside;
  }
  changed_.notify_all();
  std::exception_ptr failure;
  try {
    here();
  } catch (...) {
    failure = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_; });
  if (!failure) failure = std::exchange(failure_, nullptr);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace kvasir
