// Memory for the rows of one block at a time, handed out again and again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace kvasir::kivi {

class RowPool {
 public:
  explicit RowPool(uint64_t bytes) : bytes_(bytes) {}

  // 64-byte aligned; may throw bad_alloc.
  std::byte* take() {
    if (free_.empty()) {
      if (free_.capacity() <= all_.size())
        free_.reserve(2 * all_.size() + 16);  // free() cannot fail
      std::unique_ptr<std::byte, Delete> rows(
          static_cast<std::byte*>(::operator new(bytes_, kAlignment)));
      all_.push_back(std::move(rows));
      return all_.back().get();
    }
    std::byte* const out = free_.back();
    free_.pop_back();
    return out;
  }
  void free(std::byte* rows) noexcept { free_.push_back(rows); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* rows) const { ::operator delete(rows, kAlignment); }
  };
  uint64_t bytes_;
  std::vector<std::unique_ptr<std::byte, Delete>> all_;
  std::vector<std::byte*> free_;
};

}  // namespace kvasir::kivi
