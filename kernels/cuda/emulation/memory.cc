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
  const uint64_t run = is_shared_ ? block->run_of_block() : block->run_of_launch();
  const uint64_t end = static_cast<uint64_t>(offset) + bytes;
  for (auto i = static_cast<uint64_t>(offset); i < end;) {
    Word& w = word(i);
    const bool is_whole = i % kWord == 0 && end - i >= kWord && w.parted_in != run;
    check_history(is_whole ? w.all : byte(w, i, run), i, run, touch, *block);
    i += is_whole ? kWord : 1;
  }
}

void Region::check_fenced(const void* at, uint64_t bytes) {
  if (!holds(at, bytes)) return;  // check() says so
  const Block& block = *Block::running();
  const uint64_t run = block.run_of_block();
  const auto begin = static_cast<uint64_t>(static_cast<const std::byte*>(at) - begin_);
  for (uint64_t i = begin; i < begin + bytes; ++i) {
    const Word& w = word(i);
    const History& h = w.parted_in == run ? w.each[i % kWord] : w.all;
    if (h.run != run || !h.is_written || block.is_fenced(h)) continue;
    throw Fault(FaultKind::kRace,
                "byte " + std::to_string(i) + " of " + name() + " was written by " +
                    place(h.writer) + ", and no fence_async() of it comes before " +
                    place(block.moment()) + " hands it to tensor cores" + block.since());
  }
}

Word& Region::word(uint64_t at) {
  std::unique_ptr<Word[]>& page = pages_[at / kPage];
  if (!page) page = std::make_unique<Word[]>(kPage / kWord);
  return page[at % kPage / kWord];
}

History& Region::byte(Word& word, uint64_t at, uint64_t run) {
  if (word.parted_in != run) {
    if (!word.each) word.each = std::make_unique<History[]>(kWord);
    std::fill_n(word.each.get(), kWord, word.all);
    word.parted_in = run;
  }
  return word.each[at % kWord];
}

void Region::fail_race(uint64_t at, Touch touch, const Moment& other, const char* did) const {
  const char* does = touch == Touch::kRead ? " reads" : " writes";
  throw Fault(FaultKind::kRace,
              place(Block::running()->moment()) + does + " byte " + std::to_string(at) + " of " +
                  name() + ", which " + place(other) + " " + did +
                  ", and no barrier stands between them" + Block::running()->since());
}

void Region::check_history(History& h, uint64_t at, uint64_t run, Touch touch, const Block& block) {
  const Moment& now = block.moment();
  if (h.run != run) {
    h = History{};
    h.run = run;
  }
  const bool both_atomic = h.by_atomic && touch == Touch::kAtomic;
  if (h.is_written && !both_atomic && !block.is_ordered(h.writer))
    fail_race(at, touch, h.writer, "wrote");
  if (touch == Touch::kRead) {
    if (is_shared_ && !h.is_written) {
      throw Fault(FaultKind::kUninitialized, place(now) + " reads byte " + std::to_string(at) +
                                                 " of " + name() +
                                                 ", which no thread of the block has written");
    }
    if (h.is_read && h.reader.block != now.block) h.read_by_blocks = true;
    const bool same_epoch = h.is_read && h.reader.block == now.block && h.reader.epoch == now.epoch;
    const bool other_warp = h.reader.thread / kWarpSize != now.thread / kWarpSize;
    if (is_shared_ && block.has_arrivals()) {
      h.read_by_warps = h.read_by_warps && same_epoch;
      remember_reader(now, same_epoch, h.readers);
    } else {
      h.read_by_warps = same_epoch && (h.read_by_warps || other_warp);
    }
    if (h.is_read && !same_thread(h.reader, now)) {
      h.other_reader = h.reader;
      h.is_read_twice = true;
    }
    h.reader = now;
    h.is_read = true;
    return;
  }
  if (h.is_read) {
    const bool in_epoch = h.reader.block == now.block && h.reader.epoch == now.epoch;
    const bool by_others = h.read_by_blocks || (h.read_by_warps && in_epoch);
    if (by_others || !block.is_ordered(h.reader)) fail_race(at, touch, h.reader, "read");
    if (h.is_read_twice && !block.is_ordered(h.other_reader))
      fail_race(at, touch, h.other_reader, "read");
    for (const Moment& reader : h.readers)
      if (!block.is_ordered(reader)) fail_race(at, touch, reader, "read");
    h.readers.clear();
  }
  h.writer = now;
  h.n_fences = block.n_fences();
  h.is_written = true;
  h.by_atomic = touch == Touch::kAtomic;
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
