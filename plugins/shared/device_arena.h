// Equal blocks of device memory, carved from allocations that grow, reused through a free list.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace kvasir::sdk {

// One size class. Memory goes back to the device with the arena.
class DeviceArena {
 public:
  // block_bytes: a multiple of 64.
  explicit DeviceArena(uint64_t block_bytes) : block_bytes_(block_bytes) {}
  ~DeviceArena() {
    for (const Chunk& chunk : chunks_) cuda::free_memory(chunk.data);
  }
  DeviceArena(const DeviceArena&) = delete;

  // Of at least 64-byte alignment. most_bytes: that a new allocation may take, at least a block.
  // Throws cuda::Error, also of a device that is full.
  std::byte* allocate(uint64_t most_bytes) {
    if (!free_.empty()) {
      std::byte* block = free_.back();
      free_.pop_back();
      return block;
    }
    if (n_fresh_ == 0) grow(most_bytes);
    std::byte* block = next_;
    next_ += block_bytes_;
    --n_fresh_;
    return block;
  }
  void free(std::byte* block) noexcept { free_.push_back(block); }  // grow() made the space
  bool holds(const void* data) const {
    return std::any_of(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
      return data >= chunk.data && data < chunk.data + chunk.bytes;
    });
  }
  uint64_t bytes() const { return bytes_; }  // that it took of the device

 private:
  // From what cudaMalloc gives at least up to 64 MiB, so that small runs take little and large ones
  // seldom ask.
  static constexpr uint64_t kLeast = uint64_t{2} << 20, kMost = uint64_t{64} << 20;
  struct Chunk {
    std::byte* data;
    uint64_t bytes;
  };

  void grow(uint64_t most_bytes) {
    const uint64_t wished = std::clamp(bytes_, kLeast, kMost);
    const uint64_t n = std::max<uint64_t>(std::min(wished, most_bytes) / block_bytes_, 1);
    chunks_.reserve(chunks_.size() + 1);
    free_.reserve(bytes_ / block_bytes_ + n);
    next_ = static_cast<std::byte*>(cuda::allocate_memory(n * block_bytes_));
    chunks_.push_back({next_, n * block_bytes_});
    n_fresh_ = n;
    bytes_ += n * block_bytes_;
  }

  uint64_t block_bytes_, bytes_ = 0;
  std::byte* next_ = nullptr;  // of the last chunk: first block never handed out
  uint64_t n_fresh_ = 0;       // and how many of them are left
  std::vector<Chunk> chunks_;
  std::vector<std::byte*> free_;
};

}  // namespace kvasir::sdk
