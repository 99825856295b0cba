// See block_file.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/block_file.h"

#include <fcntl.h>
#include <kvasir/sdk/error.h>
#include <kvasir/status.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <new>

#include "plugins/shared/nameless_file.h"
#include "plugins/storage/tiered/reason.h"

namespace kvasir::tiered {
namespace {

// Of a read past the page cache, as the file system says; a page where it does not. 0: never.
uint64_t direct_alignment(int file) {
#ifdef STATX_DIOALIGN
  struct statx s {};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 &&
      (s.stx_mask & STATX_DIOALIGN) != 0) {
    const uint64_t offset = s.stx_dio_offset_align, memory = s.stx_dio_mem_align;
    return offset != 0 && BlockFile::kPage % offset == 0 && memory <= BlockFile::kPage ? offset : 0;
  }
#endif
  return file >= 0 ? BlockFile::kPage : 0;
}

bool set_direct(int file, bool direct) noexcept {
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

template <class Call>
int64_t again_after_eintr(const Call& call) noexcept {
  for (;;) {
    const ssize_t n = call();
    if (n >= 0) return n;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

BlockFile::BlockFile(std::string folder, uint64_t limit_bytes, bool direct)
    : folder_(std::move(folder)),
      limit_bytes_(limit_bytes),
      file_(sdk::open_nameless_file(folder_)) {
  if (file_ < 0)
    throw sdk::Error(KVASIR_ERR_IO, "tiered: no file can be made in " + folder_ + ": " +
                                        reason(errno) + "; set folder to one that does");
  ::posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);  // read no more than is asked for
  if (const uint64_t alignment = direct ? direct_alignment(file_) : 0;
      alignment != 0 && set_direct(file_, true)) {
    direct_ = true;
    alignment_ = alignment;
  }
}

BlockFile::~BlockFile() { ::close(file_); }

void BlockFile::stop_direct() noexcept {
  if (direct_.exchange(false)) set_direct(file_, false);
}

Extent BlockFile::reserve(uint64_t bytes) {
  Extent out;
  out.bytes = bytes;
  if (const auto found = by_size_.lower_bound({bytes, 0}); found != by_size_.end()) {
    const auto [size, offset] = *found;
    remove_free(free_.find(offset));
    if (size > bytes) add_free(offset + bytes, size - bytes);
    out.offset = offset;
  } else if (limit_bytes_ == 0 || end_ + bytes <= limit_bytes_) {
    out.offset = end_;
    end_ += bytes;
  }
  return out;
}

void BlockFile::give_back(const Extent& extent) noexcept {
  try {
    uint64_t begin = extent.offset, end = begin + extent.bytes;
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == end) {
      end += next->second;
      remove_free(next++);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        remove_free(before);
      }
    }
    if (end == end_)
      end_ = begin;
    else
      add_free(begin, end - begin);
  } catch (const std::bad_alloc&) {  // the file keeps a hole
  }
}

void BlockFile::add_free(uint64_t offset, uint64_t bytes) {
  by_size_.emplace(bytes, offset);
  try {
    free_.emplace(offset, bytes);
  } catch (...) {
    by_size_.erase({bytes, offset});
    throw;
  }
}

void BlockFile::remove_free(std::map<uint64_t, uint64_t>::iterator at) {
  by_size_.erase({at->second, at->first});
  free_.erase(at);
}

int64_t BlockFile::read(uint64_t offset, uint64_t n, std::byte* to) noexcept {
  const int64_t moved =
      again_after_eintr([&] { return ::pread(file_, to, n, static_cast<off_t>(offset)); });
  if (moved > 0) count(false, static_cast<uint64_t>(moved));
  return moved;
}

int64_t BlockFile::write(uint64_t offset, uint64_t n, const std::byte* from) noexcept {
  const int64_t moved =
      again_after_eintr([&] { return ::pwrite(file_, from, n, static_cast<off_t>(offset)); });
  if (moved > 0) count(true, static_cast<uint64_t>(moved));
  return moved;
}

}  // namespace kvasir::tiered
