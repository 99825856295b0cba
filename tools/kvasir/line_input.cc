// See line_input.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/line_input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace kvasir::tool {

LineInput::Result LineInput::read(std::string& line) {
  for (;;) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (at_end_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Result::kLine;
    }
    if (at_end_) return Result::kEnd;
    char bytes[4096];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) return Result::kInterrupted;
    if (n < 0) throw input_error(std::string("standard input: ") + std::strerror(errno));
    if (n == 0) at_end_ = true;
    buffer_.append(bytes, static_cast<size_t>(n > 0 ? n : 0));
  }
}

}  // namespace kvasir::tool
