// A file without a name that holds blocks; it goes with the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvasir::tiered {

// Where a block lies.
struct Extent {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  uint64_t offset = kNowhere;
  uint64_t bytes = 0;
  uint64_t seed = 0;  // of its checksums: which reserve() it was
  bool valid() const { return offset != kNowhere; }
};

// reserve() and give_back() are for one thread at a time; the others for any.
class BlockFile {
 public:
  static constexpr uint64_t kPage = 4096;  // where extents begin, if the page cache is passed by

  // In `folder`. direct: past the page cache (O_DIRECT), where its file system can. Throws
  // sdk::Error(KVASIR_ERR_IO).
  BlockFile(const std::string& folder, bool direct);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  Extent reserve(uint64_t bytes);  // of freed ones of that size, else at the end
  void give_back(const Extent& extent) noexcept;
  uint64_t bytes() const { return end_; }  // the file's length

  // Of what offset, length and address of a read are multiples; divides kPage. 1: of nothing.
  uint64_t alignment() const { return alignment_; }
  // A call was refused with EINVAL: from now on through the page cache.
  void stop_direct() noexcept;

  int descriptor() const { return file_; }
  // One call, again after EINTR. What it moved is counted. Returns that, or -errno; 0 only of a
  // read beyond the file's end.
  int64_t read(uint64_t offset, uint64_t n, std::byte* to) noexcept;
  int64_t write(uint64_t offset, uint64_t n, const std::byte* from) noexcept;
  // What calls of others on descriptor() moved.
  void count(bool is_write, uint64_t n) noexcept { (is_write ? bytes_written_ : bytes_read_) += n; }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  int file_ = -1;
  std::atomic<bool> direct_{false};
  uint64_t alignment_ = 1;
  uint64_t n_reserved_ = 0;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
  uint64_t end_ = 0;
  std::map<uint64_t, std::vector<uint64_t>> free_;  // offsets by size
};

// The text of an errno.
std::string reason(int error);

}  // namespace kvasir::tiered
