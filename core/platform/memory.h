// Aligned, optionally huge-page and NUMA-placed anonymous memory; what the machine has left.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace kvasir {

enum class HugePages { kNone, kTransparent, kExplicit };  // what an allocation really got

// Owns one mmap'ed region, zero-filled, aligned to at least 64 bytes (2 MiB when >= 2 MiB).
// Pages are committed on first touch.
class Region {
 public:
  Region() = default;
  // node (NumaNode::os_index): preferred, another one is used when it is full; < 0: first touch
  // decides. Throws Error(kResource) naming the size when it cannot be had: more than is available
  // at this moment.
  explicit Region(size_t bytes, int node = -1);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  HugePages huge_pages() const { return huge_pages_; }
  int node() const { return node_; }  // -1: not placed (not asked for, or not possible here)
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  size_t mapped_bytes() const;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  HugePages huge_pages_ = HugePages::kNone;
  int node_ = -1;
};

struct MemoryInfo {
  uint64_t total_bytes;          // the smaller of physical memory and the cgroup's limit
  uint64_t available_bytes;      // likewise, at this moment
  uint64_t resident_bytes;       // of this process
  uint64_t peak_resident_bytes;  // of this process (VmHWM)
};
// `root` is where proc and sys are looked for; tests give a folder of their own.
MemoryInfo memory_info(const std::filesystem::path& root = "/");

// Read bandwidth in bytes/s of all workers of `pool` streaming `bytes`, each its own slice: the
// median of `repeats`, of the faster way to read (one stream per worker, or several). The figure
// every "achieved / floor" is divided by. bytes 0: 1 GiB, or a quarter of what is available where
// that is less.
class ThreadPool;
double measure_read_bandwidth(ThreadPool& pool, size_t bytes = 0, int repeats = 5);

}  // namespace kvasir
