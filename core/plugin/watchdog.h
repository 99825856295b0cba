// Watches how long plugin calls run: a plugin that does not return cannot be stopped, but named.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/plugin/breadcrumb.h"

namespace kvasir {

class Watchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod{500};
  // The call that has run longest, and for how long at least. Called from the watchdog's thread,
  // every kPeriod as long as one is under way that was so the last time.
  using OnCall = std::function<void(const RunningCall& call, std::chrono::milliseconds age)>;

  explicit Watchdog(OnCall on_call);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
