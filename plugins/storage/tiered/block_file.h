// Files without a name that hold blocks, one behind the other; they go with the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::tiered {

// Where a block lies.
struct Extent {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  uint64_t offset = kNowhere;
  uint64_t bytes = 0;
  uint32_t seed = 0;  // of its checksums: which reserve() it was
  uint32_t file = 0;  // of the chain
  bool valid() const { return offset != kNowhere; }
};

// reserve() and give_back() are for one thread at a time; the others for any.
class BlockFile {
 public:
  static constexpr uint64_t kPage = 4096;  // where extents begin, if the page cache is passed by

  // In `folder`. direct: past the page cache (O_DIRECT), where its file system can. limit_bytes:
  // that the file never exceeds; 0: none. Throws sdk::Error(KVASIR_ERR_IO).
  BlockFile(std::string folder, uint64_t limit_bytes, bool direct);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // The smallest free place that is large enough, else at the end; not valid when the limit leaves
  // none.
  Extent reserve(uint64_t bytes);
  void give_back(const Extent& extent) noexcept;
  uint64_t bytes() const { return end_; }  // the file's length, without free places at its end
  uint64_t limit_bytes() const { return limit_bytes_; }
  const std::string& folder() const { return folder_; }

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
  void add_free(uint64_t offset, uint64_t bytes);
  void remove_free(std::map<uint64_t, uint64_t>::iterator at);

  std::string folder_;
  uint64_t limit_bytes_;
  int file_ = -1;
  std::atomic<bool> direct_{false};
  uint64_t alignment_ = 1;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
  uint64_t end_ = 0;
  std::map<uint64_t, uint64_t> free_;                // bytes by offset; no two touch
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // the same: bytes, offset
};

// The fastest first. Calls as those of a file; extents say which.
class FileChain {
 public:
  void add(std::unique_ptr<BlockFile> file) { files_.push_back(std::move(file)); }
  uint32_t size() const { return static_cast<uint32_t>(files_.size()); }
  BlockFile& operator[](uint32_t file) const { return *files_[file]; }
  BlockFile& of(const Extent& extent) const { return *files_[extent.file]; }
  Extent reserve(uint32_t file, uint64_t bytes) {
    Extent out = files_[file]->reserve(bytes);
    out.file = file;
    out.seed = ++n_reserved_;
    return out;
  }
  void give_back(const Extent& extent) noexcept {
    if (extent.valid()) of(extent).give_back(extent);
  }

 private:
  std::vector<std::unique_ptr<BlockFile>> files_;
  uint32_t n_reserved_ = 0;
};

}  // namespace kvasir::tiered
