// See block_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/block_file.h"

#include <fcntl.h>
#include <kvasir/status.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <new>
#include <system_error>

#include "plugins/sdk/error.h"

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

// All of it, however many calls that takes; 0, or an errno.
template <class Call>
int transfer(const Extent& extent, const Call& call) {
  for (uint64_t done = 0; done < extent.bytes;) {
    const ssize_t n = call(done, extent.bytes - done, static_cast<off_t>(extent.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return EIO;  // the file is shorter than it was
    done += static_cast<uint64_t>(n);
  }
  return 0;
}

}  // namespace

BlockFile::BlockFile(const std::string& folder) : file_(open_nameless(folder)) {
  if (file_ < 0)
    throw sdk::Error(KVASIR_ERR_IO, "tiered: no file can be made in " + folder + ": " +
                                        reason(errno) + "; set folder to one that does");
}

BlockFile::~BlockFile() { ::close(file_); }

Extent BlockFile::reserve(uint64_t bytes) {
  Extent out{end_, bytes, 0};
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

bool BlockFile::write(Extent& extent, const std::byte* from, std::string& why) const {
  extent.checksum = XXH3_64bits(from, extent.bytes);
  const int error = transfer(extent, [&](uint64_t done, uint64_t n, off_t at) {
    return ::pwrite(file_, from + done, n, at);
  });
  if (error != 0) why = reason(error);
  return error == 0;
}

bool BlockFile::read(const Extent& extent, std::byte* to, std::string& why) const {
  const int error = transfer(extent, [&](uint64_t done, uint64_t n, off_t at) {
    return ::pread(file_, to + done, n, at);
  });
  if (error != 0) {
    why = reason(error);
  } else if (XXH3_64bits(to, extent.bytes) != extent.checksum) {
    why = "its bytes changed on the way";
    return false;
  }
  return error == 0;
}

}  // namespace kvasir::tiered
