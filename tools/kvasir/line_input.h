// Lines from a terminal or a pipe, read so that Ctrl-C interrupts the waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvasir::tool {

class LineInput {
 public:
  enum class Result { kLine, kEnd, kInterrupted };
  // Reads file descriptor 0. The line comes without its end; a last line without one counts.
  Result read(std::string& line);

 private:
  std::string buffer_;
  bool at_end_ = false;
};

}  // namespace kvasir::tool
