// Bounds, and the order of accesses by barriers; see memory.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/emulation/memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/emulation/fault.h"

namespace kvasir::cuda::emulation {
namespace {

constexpr std::align_val_t kAlignment{256};

struct Allocations {
  std::mutex mutex;
  uint64_t most_bytes = uint64_t{16} << 30, bytes = 0;
  std::map<const std::byte*, std::unique_ptr<Region>> regions;  // by their first byte
};
Allocations& allocations() {
  static Allocations all;
  return all;
}

std::string place(const Moment& m) {
  return "thread " + std::to_string(m.thread) + " of block " + std::to_string(m.block);
}

bool same_thread(const Moment& a, const Moment& b) {
  return a.block == b.block && a.thread == b.thread;
}

void remember_reader(const Moment& now, bool same_epoch, std::vector<Moment>& readers) {
  if (!same_epoch) readers.clear();
  for (Moment& reader : readers) {
    if (reader.thread != now.thread) continue;
    reader = now;
    return;
  }
  readers.push_back(now);
}

}  // namespace

Region::Region(std::byte* begin, uint64_t bytes, bool is_shared)
    : begin_(begin), bytes_(bytes), is_shared_(is_shared), pages_((bytes + kPage - 1) / kPage) {}

bool Region::holds(const void* at, uint64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(at);
  return begin_ <= first && first <= begin_ + bytes_ &&
         bytes <= static_cast<uint64_t>(begin_ + bytes_ - first);
}

std::string Region::name() const {
  return (is_shared_ ? "shared memory of " : "global memory of ") + std::to_string(bytes_) +
         " bytes";
}

void Region::check(const void* at, uint64_t bytes, uint64_t alignment, Touch touch) {
  const int64_t offset = static_cast<const std::byte*>(at) - begin_;
  const Block* block = Block::running();
  const auto fail = [&](const std::string& what) {
    const std::string who = block ? place(block->moment()) + ": " : "";
    throw Fault(FaultKind::kBounds, who + what + (block ? block->since() : ""));
  };
  if (!holds(at, bytes)) {
    fail(std::to_string(bytes) + " bytes at " + std::to_string(offset) + " reach outside of " +
         name());
  }
  if (reinterpret_cast<uintptr_t>(at) % alignment != 0) {
    fail("address " + std::to_string(offset) + " in " + name() + " is not a multiple of " +
         std::to_string(alignment));
  }
  if (!block) return;
  for (uint64_t i = 0; i < bytes; ++i) check_byte(static_cast<uint64_t>(offset) + i, touch, *block);
}

void Region::check_fenced(const void* at, uint64_t bytes) {
  if (!holds(at, bytes)) return;  // check() says so
  const Block& block = *Block::running();
  const auto begin = static_cast<uint64_t>(static_cast<const std::byte*>(at) - begin_);
  for (uint64_t i = begin; i < begin + bytes; ++i) {
    const Byte& b = byte(i);
    if (b.run != block.run_of_block() || !b.is_written || block.is_fenced(b)) continue;
    throw Fault(FaultKind::kRace,
                "byte " + std::to_string(i) + " of " + name() + " was written by " +
                    place(b.writer) + ", and no fence_async() of it comes before " +
                    place(block.moment()) + " hands it to tensor cores" + block.since());
  }
}

Byte& Region::byte(uint64_t at) {
  std::unique_ptr<Byte[]>& page = pages_[at / kPage];
  if (!page) page = std::make_unique<Byte[]>(kPage);
  return page[at % kPage];
}

void Region::fail_race(uint64_t at, Touch touch, const Moment& other, const char* did) const {
  const char* does = touch == Touch::kRead ? " reads" : " writes";
  throw Fault(FaultKind::kRace,
              place(Block::running()->moment()) + does + " byte " + std::to_string(at) + " of " +
                  name() + ", which " + place(other) + " " + did +
                  ", and no barrier stands between them" + Block::running()->since());
}

void Region::check_byte(uint64_t at, Touch touch, const Block& block) {
  const uint64_t run = is_shared_ ? block.run_of_block() : block.run_of_launch();
  const Moment& now = block.moment();
  Byte& b = byte(at);
  if (b.run != run) {
    b = Byte{};
    b.run = run;
  }
  const bool both_atomic = b.by_atomic && touch == Touch::kAtomic;
  if (b.is_written && !both_atomic && !block.is_ordered(b.writer))
    fail_race(at, touch, b.writer, "wrote");
  if (touch == Touch::kRead) {
    if (is_shared_ && !b.is_written) {
      throw Fault(FaultKind::kUninitialized, place(now) + " reads byte " + std::to_string(at) +
                                                 " of " + name() +
                                                 ", which no thread of the block has written");
    }
    if (b.is_read && b.reader.block != now.block) b.read_by_blocks = true;
    const bool same_epoch = b.is_read && b.reader.block == now.block && b.reader.epoch == now.epoch;
    const bool other_warp = b.reader.thread / kWarpSize != now.thread / kWarpSize;
    if (is_shared_ && block.has_arrivals()) {
      b.read_by_warps = b.read_by_warps && same_epoch;
      remember_reader(now, same_epoch, b.readers);
    } else {
      b.read_by_warps = same_epoch && (b.read_by_warps || other_warp);
    }
    if (b.is_read && !same_thread(b.reader, now)) {
      b.other_reader = b.reader;
      b.is_read_twice = true;
    }
    b.reader = now;
    b.is_read = true;
    return;
  }
  if (b.is_read) {
    const bool in_epoch = b.reader.block == now.block && b.reader.epoch == now.epoch;
    const bool by_others = b.read_by_blocks || (b.read_by_warps && in_epoch);
    if (by_others || !block.is_ordered(b.reader)) fail_race(at, touch, b.reader, "read");
    if (b.is_read_twice && !block.is_ordered(b.other_reader))
      fail_race(at, touch, b.other_reader, "read");
    for (const Moment& reader : b.readers)
      if (!block.is_ordered(reader)) fail_race(at, touch, reader, "read");
    b.readers.clear();
  }
  b.writer = now;
  b.n_fences = block.n_fences();
  b.is_written = true;
  b.by_atomic = touch == Touch::kAtomic;
}

void* allocate(uint64_t bytes) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  if (bytes > all.most_bytes - std::min(all.most_bytes, all.bytes)) return nullptr;
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  std::memset(data, 0xff, bytes);
  all.regions[data] = std::make_unique<Region>(data, bytes, false);
  all.bytes += bytes;
  return data;
}

void release(void* data) {
  if (!data) return;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const auto found = all.regions.find(static_cast<std::byte*>(data));
  if (found == all.regions.end())
    throw Fault(FaultKind::kBounds, "memory is freed that was not allocated, or freed twice");
  all.bytes -= found->second->bytes();
  all.regions.erase(found);
  ::operator delete(data, kAlignment);
}

void set_memory(uint64_t bytes) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.most_bytes = bytes;
}

uint64_t memory_bytes() {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return all.most_bytes;
}

uint64_t free_bytes() {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return all.most_bytes - std::min(all.most_bytes, all.bytes);
}

uint64_t n_allocated() {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return all.regions.size();
}

Region* region_of(const void* at) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  auto found = all.regions.upper_bound(static_cast<const std::byte*>(at));
  if (found == all.regions.begin()) return nullptr;
  --found;
  return found->second->holds(at, 0) ? found->second.get() : nullptr;
}

}  // namespace kvasir::cuda::emulation
