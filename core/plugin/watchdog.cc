// See watchdog.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/watchdog.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace kvasir {

struct Watchdog::Impl {
  using Clock = std::chrono::steady_clock;
  using Call = std::pair<uint32_t, uint64_t>;  // thread and number

  void watch() {
    std::map<Call, Clock::time_point> seen;  // calls under way, and when they were first seen
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, kPeriod, [&] { return stops; })) {
      const auto now = Clock::now();
      std::map<Call, Clock::time_point> still;
      const std::vector<RunningCall> calls = running_calls();
      const RunningCall* longest = nullptr;
      Clock::time_point since = now;
      for (const RunningCall& call : calls) {
        const auto known = seen.find({call.thread, call.number});
        still[{call.thread, call.number}] = known == seen.end() ? now : known->second;
        if (known == seen.end() || known->second >= since) continue;
        since = known->second;
        longest = &call;
      }
      seen = std::move(still);
      if (longest)
        on_call(*longest, std::chrono::duration_cast<std::chrono::milliseconds>(now - since));
    }
  }

  OnCall on_call;
  std::mutex mutex;
  std::condition_variable wake;
  bool stops = false;
  std::thread thread;
};

Watchdog::Watchdog(OnCall on_call) : impl_(std::make_unique<Impl>()) {
  impl_->on_call = std::move(on_call);
  impl_->thread = std::thread([this] { impl_->watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stops = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
}

}  // namespace kvasir
