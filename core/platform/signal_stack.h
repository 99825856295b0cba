// A stack for signal handlers, so that they can say that a thread's own one ran over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir {

// Of the calling thread, as long as it lives there. Without memory for it the thread has none.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* memory_ = nullptr;
};

}  // namespace kvasir
