// What it costs to check what plugins return (Engagement::check_nanos).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace kvasir {

// Adds the time of its scope.
class CheckClock {
 public:
  explicit CheckClock(uint64_t& nanos) : nanos_(nanos) {}
  ~CheckClock() {
    nanos_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin_).count());
  }
  CheckClock(const CheckClock&) = delete;
  CheckClock& operator=(const CheckClock&) = delete;

 private:
  uint64_t& nanos_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace kvasir
