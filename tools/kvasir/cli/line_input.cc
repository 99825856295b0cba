// See line_input.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/line_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace kvasir::tool {
namespace {

std::atomic<int> wake_writer{-1};

}  // namespace

LineInput::LineInput() {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0)
    throw Error(ErrorKind::kResource, std::string("no pipe: ") + std::strerror(errno));
  wake_ = ends[0];
  wake_writer = ends[1];
}

LineInput::~LineInput() {
  close(wake_writer.exchange(-1));
  close(wake_);
}

void LineInput::interrupt() noexcept {
  const int saved = errno;
  const int writer = wake_writer;
  if (writer >= 0 && write(writer, "", 1) < 0) errno = saved;  // the pipe is full, hence readable
  errno = saved;
}

void LineInput::forget_interrupts() {
  char bytes[64];
  while (::read(wake_, bytes, sizeof bytes) > 0) {
  }
}

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
    pollfd waiting[] = {{STDIN_FILENO, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR)
      throw input_error(std::string("standard input: ") + std::strerror(errno));
    if (waiting[1].revents) {
      forget_interrupts();
      return Result::kInterrupted;
    }
    if (!waiting[0].revents) continue;
    char bytes[4096];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw input_error(std::string("standard input: ") + std::strerror(errno));
    if (n == 0) at_end_ = true;
    buffer_.append(bytes, static_cast<size_t>(n > 0 ? n : 0));
  }
}

}  // namespace kvasir::tool
