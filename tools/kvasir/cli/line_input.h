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
  // Ends the read() that waits now, or else the next one, with kInterrupted. A signal handler may
  // call it on any thread. There may be one LineInput at a time.
  static void interrupt() noexcept;
  // Forgets earlier interruptions, which were not meant for the next read().
  void forget_interrupts();
  // Reads a line from file descriptor 0, without its line end. The last line needs no line end.
  Result read(std::string& line);

 private:
  int wake_ = -1;  // becomes readable on interrupt()
  std::string buffer_;
  bool at_end_ = false;
};

}  // namespace kvasir::tool
