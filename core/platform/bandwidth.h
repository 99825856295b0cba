// How fast the workers of a pool read memory: in streams, and in blocks that lie anywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/platform/memory.h"

namespace kvasir {

class ThreadPool;

// Memory that the workers of a pool read again and again, each its own slice, which it has written
// itself: it lies on that worker's node. For passes that take turns with what they are compared to.
class BandwidthMeter {
 public:
  // bytes 0: 1 GiB, or a quarter of what is available where that is less. Error(kInput) when a
  // worker's slice would be empty, Error(kResource) when the memory cannot be had. The pool must
  // outlive the meter.
  explicit BandwidthMeter(ThreadPool& pool, size_t bytes = 0);

  size_t bytes() const { return region_.size(); }  // read by a pass over all of it
  // bytes/s of one pass, in the faster of two ways (one stream per worker, or several), which the
  // constructor found. Error(kInternal) when memory does not read back what was written.
  double read_streams() { return pass(fastest_); }
  // bytes/s of one pass in blocks of block_bytes, in random order, each once. Error(kInput) unless
  // block_bytes is a multiple of 2 KiB and every worker has a block; what does not fill a block is
  // left out.
  double read_blocks(size_t block_bytes);

 private:
  friend double measure_read_bandwidth(ThreadPool&, size_t, int);
  using SumLines = uint64_t (*)(const std::byte* data, size_t n_lines);
  static std::vector<SumLines> ways_to_read();
  double pass(SumLines sum_lines);

  ThreadPool& pool_;
  size_t slice_bytes_;
  Region region_;
  SumLines fastest_;
};

}  // namespace kvasir
