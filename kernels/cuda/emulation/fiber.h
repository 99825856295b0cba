// Fibres: functions with stacks of their own that one thread of the host runs in turns. They are
// kept from block to block, since making a stack takes longer than most blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace kvasir::cuda::emulation {

// One per thread of the host: fibres belong to the thread that made them.
class FiberPool {
 public:
  static FiberPool& of_this_thread();

  FiberPool();
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;

  // Fibre i is to run `body` from its beginning at its next resume(). It must have ended before.
  // body must not throw.
  void start(size_t i, std::function<void()> body);
  void resume(size_t i);   // from outside: runs fibre i until it suspends or ends
  void suspend(size_t i);  // from inside fibre i
  bool ended(size_t i) const;

 private:
  struct Fiber;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

}  // namespace kvasir::cuda::emulation
