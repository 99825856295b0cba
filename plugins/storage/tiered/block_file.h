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

// reserve() and give_back() are for one thread at a time; write() and read() for any.
class BlockFile {
 public:
  // In `folder`. Throws sdk::Error(KVASIR_ERR_IO).
  explicit BlockFile(const std::string& folder);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  Extent reserve(uint64_t bytes);  // of freed ones of that size, else at the end
  void give_back(const Extent& extent) noexcept;
  uint64_t bytes() const { return end_; }  // the file's length

  // All of the extent, or n bytes of it from `begin` on. False with a reason in `why`.
  bool write(const Extent& extent, const std::byte* from, std::string& why);
  bool read(const Extent& extent, uint64_t begin, uint64_t n, std::byte* to, std::string& why);
  // That the calls above moved, also those that failed half-way.
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  int file_ = -1;
  uint64_t n_reserved_ = 0;
  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0};
  uint64_t end_ = 0;
  std::map<uint64_t, std::vector<uint64_t>> free_;  // offsets by size
};

}  // namespace kvasir::tiered
