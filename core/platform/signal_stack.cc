// See signal_stack.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/signal_stack.h"

#include <sys/mman.h>

#include <csignal>
#include <cstddef>

namespace kvasir {
namespace {

constexpr size_t kBytes = 64 << 10;

}  // namespace

SignalStack::SignalStack() {
  stack_t before{};
  if (sigaltstack(nullptr, &before) != 0 || !(before.ss_flags & SS_DISABLE)) return;  // it has one
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = kBytes;
  if (sigaltstack(&stack, nullptr) == 0)
    memory_ = memory;
  else
    munmap(memory, kBytes);
}

SignalStack::~SignalStack() {
  if (!memory_) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(memory_, kBytes);
}

}  // namespace kvasir
