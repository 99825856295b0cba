// See block_memory.h.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/block_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace kvasir::tiered {
namespace {

uint64_t page_bytes(const TokenSet& present, const Records& records) {
  uint64_t n_pages = 0, k_end = 0, v_end = 0;  // the pages of K and of V that are counted
  const auto touch = [&](uint64_t begin, uint64_t end, uint64_t& counted) {
    const uint64_t first = std::max(begin / kPage, counted), last = (end - 1) / kPage + 1;
    if (last > first) n_pages += last - first;
    counted = std::max(counted, last);
  };
  for (uint32_t i = present.next(0); i < present.size(); i = present.next(i + 1)) {
    const Records::Place place = records.place(i);
    touch(place.k_begin, place.k_end, k_end);
    touch(place.v_begin, place.v_end, v_end);
  }
  return n_pages * kPage;
}

std::byte* map(uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

}  // namespace

Memory allocate(uint64_t bytes) {
  return {map(bytes), [bytes](std::byte* p) { ::munmap(p, bytes); }};
}

void SpareMemory::keep_at_most(uint64_t bytes) {
  const std::lock_guard lock(kept_->mutex);
  kept_->most_bytes = bytes;
}

SpareMemory::Taken SpareMemory::take(uint64_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;  // what a mapping takes
  std::byte* data = nullptr;
  {
    const std::lock_guard lock(kept_->mutex);
    auto& mappings = kept_->mappings;
    const auto found = std::find_if(mappings.rbegin(), mappings.rend(),
                                    [&](const auto& mapping) { return mapping.second == bytes; });
    if (found != mappings.rend()) {
      data = found->first;
      kept_->bytes -= bytes;
      mappings.erase(std::next(found).base());
    }
  }
  const bool is_new = !data;
  if (is_new) data = map(bytes);
  return {{data, [kept = kept_, bytes](std::byte* p) { kept->give_back(p, bytes); }}, is_new};
}

void SpareMemory::Kept::give_back(std::byte* data, uint64_t n) noexcept {
  try {
    const std::lock_guard lock(mutex);
    if (bytes + n <= most_bytes) {
      mappings.emplace_back(data, n);
      bytes += n;
      return;
    }
  } catch (const std::bad_alloc&) {
  }
  ::munmap(data, n);
}

SpareMemory::Kept::~Kept() {
  for (const auto& [data, n] : mappings) ::munmap(data, n);
}

TokenSet BlockMemory::present(const Records& records) const {
  if (partial_) return partial_->present;
  return TokenSet::range(records.size(), 0, memory_ ? records.size() : 0);
}

TokenSet BlockMemory::missing(TokenSet needed) const {
  if (whole()) return {};
  if (partial_) needed.remove(partial_->present);
  return needed;
}

uint64_t BlockMemory::bytes(uint64_t block_bytes) const {
  if (!memory_) return 0;
  return partial_ ? std::min(partial_->page_bytes, block_bytes) : block_bytes;
}

void BlockMemory::add(Memory memory, TokenSet arrived, const Records& records) {
  arrived.add(present(records));
  if (arrived.full()) {
    partial_ = nullptr;
  } else {
    const uint64_t bytes = page_bytes(arrived, records);
    if (!partial_) partial_ = std::make_unique<Partial>();
    *partial_ = {std::move(arrived), bytes};
  }
  memory_ = std::move(memory);
}

}  // namespace kvasir::tiered
