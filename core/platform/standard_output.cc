// See standard_output.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace kvasir {
namespace {

FILE* claimed = nullptr;

bool is_name(const std::string& path) {
  return path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1" ||
         path == "/proc/" + std::to_string(::getpid()) + "/fd/1";
}

}  // namespace

void claim_standard_output() {
  if (claimed) return;
  const int own = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (own < 0) return;
  FILE* const file = ::fdopen(own, "w");
  if (!file || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    file ? std::fclose(file) : ::close(own);
    return;
  }
  claimed = file;
}

FILE* standard_output() { return claimed ? claimed : stdout; }

int open_if_standard_output(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel
  std::filesystem::path at = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    if (is_name(at.string()))
      return ::fcntl(::fileno(standard_output()), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (!std::filesystem::is_symlink(at, error)) return -1;
    const auto to = std::filesystem::read_symlink(at, error);
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  return -1;
}

}  // namespace kvasir
