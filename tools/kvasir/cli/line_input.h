// Lines from a terminal or a pipe; a signal handler can end the waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvasir::tool {

class LineInput {
 public:
  enum class Result { kLine, kEnd, kInterrupted };
  LineInput();
  ~LineInput();
  LineInput(const LineInput&) = delete;
  // Ends a read() that waits, now or later, with kInterrupted. For signal handlers, which may run
  // on any thread; one LineInput at a time.
  static void interrupt() noexcept;
  // Forgets interruptions so far: they were meant for something else.
  void forget_interrupts();
  // Reads file descriptor 0. The line comes without its end; a last line without one counts.
  Result read(std::string& line);

 private:
  int wake_ = -1;  // becomes readable on interrupt()
  std::string buffer_;
  bool at_end_ = false;
};

}  // namespace kvasir::tool
