// Calls that read and write the files of a chain: one after another, or many in flight through
// io_uring.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/host.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/storage/tiered/block_file.h"
#include "plugins/storage/tiered/options.h"

namespace kvasir::tiered {

// Bytes of a file of the chain from `offset` on, between it and a buffer of `buffer_bytes`.
struct FileCall {
  bool is_write = false;
  uint64_t offset = 0;
  uint64_t n = 0;
  uint32_t file = 0;
  bool was_refused = false;  // past the page cache; it goes on through it
};

// For one thread at a time. A buffer has one call at most, and is the caller's before start() and
// after wait() named it.
class FileIo {
 public:
  struct Done {
    uint32_t buffer;
    int error;  // an errno; 0: all of it was moved
  };
  // depth: most calls under way. n_spare: more buffers, for calls that have ended and whose bytes
  // the caller is reading while others are under way. Buffers are page-aligned.
  FileIo(const FileChain& files, uint32_t depth, uint32_t n_spare, uint64_t buffer_bytes);
  virtual ~FileIo() = default;
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  uint32_t depth() const { return depth_; }
  uint32_t n_buffers() const { return depth_ + n_spare_; }
  std::byte* buffer(uint32_t i) const { return memory_.get() + i * buffer_bytes_; }

  // It is under way at the latest with the next flush() or wait().
  virtual void start(uint32_t buffer, const FileCall& call) = 0;
  virtual void flush() {}
  // Waits until one of the calls that were started has ended; adds some of those that have.
  virtual void wait(std::vector<Done>& done) = 0;

 protected:
  const FileChain& files_;
  // What is left of a call after one system call moved `n` bytes, or failed with errno -n. True:
  // nothing is, and `error` says how it ended.
  bool ends(FileCall& rest, int64_t n, int& error);
  uint32_t n_spare() const { return n_spare_; }
  uint64_t arena_bytes() const { return n_buffers() * buffer_bytes_; }
  std::byte* arena() const { return memory_.get(); }

 private:
  uint32_t depth_, n_spare_;
  uint64_t buffer_bytes_;
  std::shared_ptr<std::byte> memory_;
};

// Calls through io_uring, on all files together; buffers are registered with the kernel where its
// limit of locked memory allows that. Null, and an errno in `error`: there is no io_uring here.
std::unique_ptr<FileIo> make_uring_io(const FileChain& files, const FileOptions& options,
                                      uint64_t buffer_bytes, int& error);
// One call at a time, done before start() returns.
std::unique_ptr<FileIo> make_plain_io(const FileChain& files, uint64_t buffer_bytes);

// As the options say; where there is no io_uring, one call at a time, and the log says so.
std::unique_ptr<FileIo> make_file_io(const FileChain& files, const FileOptions& options,
                                     uint64_t buffer_bytes, const sdk::Host& host);

}  // namespace kvasir::tiered
