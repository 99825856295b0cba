// Fibres by Boost.Context; the sanitizers are told of each change of stack.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/fiber.h"

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace kvasir::cuda::emulation {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = size_t{256} << 10;  // taken from the machine as it is touched

// What the sanitizers know of one side of a switch.
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
#endif
#ifdef __SANITIZE_THREAD__
  void* fiber = nullptr;
#endif
};

void before_switch([[maybe_unused]] Stack& from, [[maybe_unused]] const Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.fiber, 0);
#endif
}

// `left`: filled with where the switch came from, which only the sanitizer knows of a thread.
void after_switch([[maybe_unused]] Stack& here, [[maybe_unused]] Stack& left) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(here.fake, &left.bottom, &left.bytes);
#endif
}

// Frames that a fibre leaves behind as it ends: what is mapped there next is no stack.
void forget_frames([[maybe_unused]] const Stack& stack) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack.bottom, stack.bytes);
#endif
}

}  // namespace

struct FiberPool::Fiber {
  std::function<void()> body;
  bool has_ended = true;
  bool is_last = false;   // the fibre returns instead of waiting for another body
  Stack own, outside;     // this fibre's stack, and that of whoever resumed it
  context::fiber inside;  // where to go on in this fibre; empty while it runs
  context::fiber caller;  // where to go on outside; empty while it does not run

  Fiber() {
    context::protected_fixedsize_stack allocator(kStackBytes);
    const context::stack_context stack = allocator.allocate();
    own.bottom = static_cast<const std::byte*>(stack.sp) - stack.size;
    own.bytes = stack.size;
#ifdef __SANITIZE_THREAD__
    own.fiber = __tsan_create_fiber(0);
#endif
    inside = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack),
                            allocator, [this](context::fiber&& from) {
                              caller = std::move(from);
                              after_switch(own, outside);
                              while (!is_last) {
                                body();
                                has_ended = true;
                                suspend();
                              }
                              forget_frames(own);
                              before_switch(own, outside);
                              return std::move(caller);
                            });
  }
  ~Fiber() {
    is_last = true;
    resume();
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(own.fiber);
#endif
  }
  Fiber(const Fiber&) = delete;

  void resume() {
#ifdef __SANITIZE_THREAD__
    outside.fiber = __tsan_get_current_fiber();
#endif
    before_switch(outside, own);
    inside = std::move(inside).resume();
    after_switch(outside, own);
  }
  void suspend() {
    before_switch(own, outside);
    caller = std::move(caller).resume();
    after_switch(own, outside);
  }
};

FiberPool& FiberPool::of_this_thread() {
  static thread_local FiberPool pool;
  return pool;
}

FiberPool::FiberPool() = default;
FiberPool::~FiberPool() = default;

void FiberPool::start(size_t i, std::function<void()> body) {
  while (fibers_.size() <= i) fibers_.push_back(std::make_unique<Fiber>());
  fibers_[i]->body = std::move(body);
  fibers_[i]->has_ended = false;
}
void FiberPool::resume(size_t i) { fibers_[i]->resume(); }
void FiberPool::suspend(size_t i) { fibers_[i]->suspend(); }
bool FiberPool::ended(size_t i) const { return fibers_[i]->has_ended; }

}  // namespace kvasir::cuda::emulation
