// Memory of the emulated device: allocations with their bounds, and who touched each byte last.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::cuda::emulation {

class Block;
enum class Touch { kRead, kWrite, kAtomic };

// A thread at a moment of its run: what the checker orders accesses by.
struct Moment {
  uint32_t block = 0;   // linear, in the grid
  uint32_t thread = 0;  // in the block
  uint32_t epoch = 0;   // barriers of the block that it has passed
  uint32_t clock = 0;   // barriers of its warp that it has passed, and arrivals
};

// The last accesses to a byte, or to each byte of a word. Of readers two are kept, the latest of
// unlike threads: barriers of a warp order all of its lanes, so an access that some earlier reader
// is not ordered before also finds one of these two. Readers of several warps or blocks are
// remembered as such: whoever writes, one of them is of another warp or block.
struct History {
  uint64_t run = 0;  // of which launch (shared memory: block); else nothing here counts
  Moment writer, reader, other_reader;
  uint32_t n_fences = 0;  // that the writer had passed: fence_async()
  bool is_written = false, by_atomic = false, is_read = false, is_read_twice = false;
  bool read_by_warps = false;  // of one block, since reader.epoch began
  bool read_by_blocks = false;
  // Where threads of unlike warps may be ordered without a barrier of the block, of shared memory:
  // the latest access of each reader since reader.epoch began and the last write.
  std::vector<Moment> readers;
};

// Four bytes, most of which are only ever touched together.
struct Word {
  History all;                      // of each byte, but in run `parted_in`
  std::unique_ptr<History[]> each;  // since one of them was touched without the others
  uint64_t parted_in = 0;           // a run; 0: none
};

// One allocation, or one array of shared memory. Bytes are those of the host.
class Region {
 public:
  Region(std::byte* begin, uint64_t bytes, bool is_shared);

  std::byte* begin() const { return begin_; }
  uint64_t bytes() const { return bytes_; }
  bool holds(const void* at, uint64_t bytes) const;

  // Throws Fault when this access of the running thread is out of bounds, misaligned, unordered
  // with an earlier one, or reads what was never written (shared memory). Does nothing outside of a
  // launch but look at the bounds.
  void check(const void* at, uint64_t bytes, uint64_t alignment, Touch touch);
  // Throws Fault when a thread has written some of these bytes, and no fence_async() of it comes
  // before the running thread: no tensor cores may follow then.
  void check_fenced(const void* at, uint64_t bytes);

 private:
  static constexpr uint64_t kPage = 4096, kWord = 4;

  Word& word(uint64_t at);
  // Of a byte of `word` alone, which is parted.
  static History& byte(Word& word, uint64_t at, uint64_t run);
  void check_history(History& h, uint64_t at, uint64_t run, Touch touch, const Block& block);
  [[noreturn]] void fail_race(uint64_t at, Touch touch, const Moment& other, const char* did) const;
  std::string name() const;

  std::byte* begin_;
  uint64_t bytes_;
  bool is_shared_;
  std::vector<std::unique_ptr<Word[]>> pages_;  // made when first touched
};

// Allocations of the device, each as large as it was asked for, full of 0xff: NaN in every float
// type. The emulated machine has one device.
void* allocate(uint64_t bytes);  // 256-byte aligned; null when the device is full
void release(void* data);        // null does nothing
uint64_t n_allocated();
// How much memory the device has, from now on.
void set_memory(uint64_t bytes);
uint64_t memory_bytes();
uint64_t free_bytes();
// The allocation that holds this address, or null.
Region* region_of(const void* at);

}  // namespace kvasir::cuda::emulation
