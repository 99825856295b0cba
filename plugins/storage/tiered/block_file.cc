// See block_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/block_file.h"

#include <fcntl.h>
#include <kvasir/sdk/error.h>
#include <kvasir/status.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace kvasir::tiered {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// Unlinked at once where the file system has no nameless files.
int open_nameless(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = folder + "/kvasir-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

// n bytes, however many calls that takes; 0, or an errno. Adds what was moved to `moved`.
template <class Call>
int transfer(uint64_t offset, uint64_t n, std::atomic<uint64_t>& moved, const Call& call) {
  for (uint64_t done = 0; done < n;) {
    const ssize_t now = call(done, n - done, static_cast<off_t>(offset + done));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return errno;
    if (now == 0) return EIO;  // the file is shorter than it was
    done += static_cast<uint64_t>(now);
    moved += static_cast<uint64_t>(now);
  }
  return 0;
}

}  // namespace

BlockFile::BlockFile(const std::string& folder) : file_(open_nameless(folder)) {
  if (file_ < 0)
    throw sdk::Error(KVASIR_ERR_IO, "tiered: no file can be made in " + folder + ": " +
                                        reason(errno) + "; set folder to one that does");
  ::posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);  // read no more than is asked for
}

BlockFile::~BlockFile() { ::close(file_); }

Extent BlockFile::reserve(uint64_t bytes) {
  Extent out{end_, bytes, ++n_reserved_};
  std::vector<uint64_t>& free = free_[bytes];
  if (free.empty()) {
    end_ += bytes;
  } else {
    out.offset = free.back();
    free.pop_back();
  }
  return out;
}

void BlockFile::give_back(const Extent& extent) noexcept {
  if (!extent.valid()) return;
  try {
    free_[extent.bytes].push_back(extent.offset);
  } catch (const std::bad_alloc&) {  // the file keeps a hole
  }
}

bool BlockFile::write(const Extent& extent, const std::byte* from, std::string& why) {
  const auto call = [&](uint64_t done, uint64_t n, off_t at) {
    return ::pwrite(file_, from + done, n, at);
  };
  const int error = transfer(extent.offset, extent.bytes, bytes_written_, call);
  if (error != 0) why = reason(error);
  return error == 0;
}

bool BlockFile::read(const Extent& extent, uint64_t begin, uint64_t n, std::byte* to,
                     std::string& why) {
  const auto call = [&](uint64_t done, uint64_t rest, off_t at) {
    return ::pread(file_, to + done, rest, at);
  };
  const int error = transfer(extent.offset + begin, n, bytes_read_, call);
  if (error != 0) why = reason(error);
  return error == 0;
}

}  // namespace kvasir::tiered
