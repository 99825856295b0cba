// See files.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/platform/standard_output.h"
#include "tools/kvasir/cli/text.h"

namespace kvasir::tool {

std::string read_file(const std::string& path, const std::string& what, uint64_t most_bytes) {
  const auto fail = [&](const std::string& why) -> Error {
    return input_error(what + " " + path + ": " + why);
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw fail(std::string("cannot be opened: ") + std::strerror(errno));
  std::string bytes, piece(size_t{1} << 20, '\0');
  ssize_t n = 0;
  while (bytes.size() <= most_bytes) {
    n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    bytes.append(piece, 0, static_cast<size_t>(n));
  }
  const int error = errno;
  ::close(fd);
  if (n < 0 && error == EISDIR) throw fail("is a folder, expected a file");
  if (n < 0) throw fail(std::string("cannot be read: ") + std::strerror(error));
  if (bytes.size() > most_bytes)
    throw fail("is longer than " + bytes_text(most_bytes) + ", the most that is read");
  return bytes;
}

uint64_t file_bytes(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode)
             ? static_cast<uint64_t>(found.st_size)
             : 0;
}

void check_overwrite(const std::string& path, bool force) {
  if (!force && replaces_file(path))
    throw input_error("-o " + path + ": exists already; --force overwrites it");
}

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Opened the wrong way round. Nobody can be told of errors that stderr would have told.
    const int flags = fd == STDIN_FILENO ? O_WRONLY : fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (::open("/dev/null", flags) != fd) return;  // the lowest free number
  }
}

void fail_standard_output() {
  throw Error(ErrorKind::kResource, std::string("standard output: ") + std::strerror(errno));
}

void flush_standard_output() {
  if (std::fflush(standard_output()) != 0 && errno != EPIPE) fail_standard_output();
}

Output::Output(const std::string& path, As as) : path_(path) {
  if (is_stdout()) {
    std::signal(SIGPIPE, SIG_IGN);
  } else if (as == As::kWhole) {
    whole_.emplace(path, OutputFile::Options{.flag = "-o "});
  } else {
    lines_ = open_if_standard_output(path);
    if (lines_ < 0) lines_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (lines_ < 0) fail_lines(errno);
  }
}

Output::~Output() {
  if (lines_ >= 0) ::close(lines_);
}

bool Output::write(const void* data, size_t bytes) {
  if (whole_) {
    whole_->write(data, bytes);
    return true;
  }
  if (!is_stdout()) return write_line(data, bytes);
  if (std::fwrite(data, 1, bytes, standard_output()) == bytes) return true;
  if (errno != EPIPE) fail_standard_output();
  return false;
}

bool Output::write_line(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  for (size_t left = bytes; left > 0;) {
    const ssize_t n = ::write(lines_, at, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // A device or a FIFO cannot be cut, and need not be.
      [[maybe_unused]] const int cut = ::ftruncate(lines_, static_cast<off_t>(n_written_));
      if (error == EPIPE) return false;
      fail_lines(error);
    }
    at += n;
    left -= static_cast<size_t>(n);
  }
  n_written_ += bytes;
  return true;
}

void Output::fail_lines(int error) const {
  throw write_error("-o " + path_ + ": cannot be written", error);
}

bool Output::finish() {
  if (whole_) whole_->finish();
  if (lines_ >= 0 && ::close(std::exchange(lines_, -1)) != 0 && errno != EINTR) fail_lines(errno);
  if (!is_stdout() || std::fflush(standard_output()) == 0) return true;
  if (errno != EPIPE) fail_standard_output();
  return false;
}

std::filesystem::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache && *cache) return std::filesystem::path(cache) / "kvasir";
  if (home && *home) return std::filesystem::path(home) / ".cache" / "kvasir";
  return {};
}

}  // namespace kvasir::tool
