// See interrupt.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "tools/kvasir/cli/line_input.h"

namespace kvasir::tool {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // else no signal handler may touch it

extern "C" void on_interrupt(int) {
  if (interrupted.exchange(true)) std::_Exit(130);
  LineInput::interrupt();
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  if (sigaction(SIGINT, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool is_interrupted() { return interrupted.load(); }

void stop_if_interrupted() {
  if (is_interrupted()) throw Interrupted("interrupted");
}

void forget_interrupt() { interrupted = false; }

}  // namespace kvasir::tool
