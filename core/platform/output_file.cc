// See output_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/platform/standard_output.h"

namespace kvasir {
namespace {

// Names of open descriptors: a file they name is open elsewhere, and must stay the same file.
bool is_descriptor(const std::string& path) {
  return path.starts_with("/dev/std") || path.starts_with("/dev/fd/") || path.starts_with("/proc/");
}

bool is_written_through(const std::string& path) {
  struct stat found {};
  if (is_descriptor(path)) return true;
  return ::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode);
}

// What a chain of links names, whether it exists or not.
std::string behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the kernel
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    const auto to = std::filesystem::read_symlink(path, error);
    path = to.is_absolute() ? to : path.parent_path() / to;
  }
  return path.string();
}

}  // namespace

bool replaces_file(const std::string& path) {
  struct stat found {};
  return !is_descriptor(path) && ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

Error write_error(const std::string& what, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {is_full ? ErrorKind::kResource : ErrorKind::kInput,
          what + ": " + std::generic_category().message(error) +
              (is_full ? "; free space or choose another folder"
                       : "; check that the folder exists and may be written to")};
}

OutputFile::OutputFile(const std::string& path, Options options)
    : path_(path), options_(std::move(options)), target_(behind_links(path)) {
  fd_ = open_if_standard_output(path);
  if (fd_ >= 0) return;
  if (is_written_through(path)) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    partial_ = target_ + ".partial-" + std::to_string(::getpid());
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                 options_.mode);
  }
  if (fd_ >= 0) return;
  const int error = errno;
  partial_.clear();
  fail("cannot be written", error);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd_, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot be written", errno);
    at += done;
    bytes -= static_cast<size_t>(done);
  }
}

void OutputFile::finish() {
  sync();
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 && errno != EINTR) fail("cannot be written", errno);  // closed with EINTR, too
  if (partial_.empty()) return;
  if (::rename(partial_.c_str(), target_.c_str()) != 0) fail("cannot be renamed into place", errno);
  partial_.clear();
}

// Some file systems find out late that the disk is full, and a machine that loses power must not
// keep the new name without the bytes. What is no regular file need not offer it.
void OutputFile::sync() {
  if (partial_.empty()) return;
  int synced = 0;
  while ((synced = ::fsync(fd_)) != 0 && errno == EINTR) {
  }
  if (synced != 0 && errno != EINVAL && errno != ENOTSUP) fail("cannot be written", errno);
}

void OutputFile::fail(const char* what, int error) const {
  throw write_error(options_.flag + path_ + ": " + what, error);
}

}  // namespace kvasir
