// Blocks that come to the device, and go down when they are full, on a stream of their own; see
// device_blocks.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "plugins/shared/kv_type.h"
#include "plugins/storage/tiered/device_blocks.h"

namespace kvasir::tiered {
namespace {

// What comes from below may leave before it is leased, if others leave in that moment.
constexpr int kMostAttempts = 3;

// Whole blocks that are leased below at once, however few of their tokens come.
constexpr uint64_t kMostLeasedBytes = uint64_t{32} << 20;

}  // namespace

// One after another: a block that comes twice comes the second time with the next call.
size_t DeviceBlocks::load(std::span<Request> some, bool is_asked) noexcept {
  std::vector<Coming> coming;
  size_t n = 0;
  kvasir_status status = KVASIR_OK;  // of those that were begun
  std::string why;
  try {
    {
      const std::lock_guard lock(mutex_);
      coming.reserve(some.size());
      uint64_t staged = 0, leased = 0;
      for (Request& request : some) {
        const Block* block = table_.block(request.handle);
        if (block) {
          staged += most_staged(*block, request);
          leased += frame_bytes(*block);
          if (n != 0 &&
              (block->bytes.moving || staged > staging_.size() || leased > kMostLeasedBytes))
            break;
        }
        ++n;
        begin(request, coming);
      }
    }
    if (!coming.empty()) {
      lease_below(coming, is_asked);
      copy_up(coming);
    }
  } catch (const sdk::Error& e) {
    status = e.status();
    why = e.what();
  } catch (const std::bad_alloc&) {
    status = KVASIR_ERR_OUT_OF_MEMORY;
    why = "out of memory";
  } catch (const std::exception& e) {
    status = KVASIR_ERR_INTERNAL;
    why = e.what();
  }
  if (n == 0) some[n++].status = status;
  for (Coming& one : coming) {
    if (one.lease.lease != 0) below_.release({&one.lease.lease, 1});
    if (one.request->status != KVASIR_OK) continue;
    one.request->status = status;
    one.request->why = why;
  }
  const std::lock_guard lock(mutex_);
  for (const Coming& one : coming) {
    end(one);
    const Request& request = *one.request;
    if (is_asked && request.status == KVASIR_OK && request.tier == 0)
      tokens_found_ += one.tokens.count();
  }
  moved_.notify_all();
  return n;
}

// Tokens that are on the device already do not come.
uint64_t DeviceBlocks::most_staged(const Block& block, const Request& request) const {
  if (request.tokens.full()) return frame_bytes(block);
  return request.tokens.count() * records_of(block.name.kv_head).data_bytes();
}

void DeviceBlocks::begin(Request& request, std::vector<Coming>& coming) {
  Block* block = table_.block(request.handle);
  request.status = KVASIR_ERR_IO;
  if (!block || block->bytes.lost) return;
  request.status = KVASIR_ERR_OUT_OF_MEMORY;
  Bytes& bytes = block->bytes;
  Layer& layer = layers_[block->name.layer];
  TokenSet tokens = without_present(*block, request.tokens);
  if (!tokens.empty()) {
    layer.fresh.push_back(request.handle);
    if (!bytes.frame) {
      auto none = std::make_unique<TokenSet>(records_of(block->name.kv_head).size());
      try {
        bytes.frame = allocate(bytes.below);
      } catch (const sdk::Error& e) {
        request.status = e.status();
        request.why = e.what();
        return;
      }
      bytes.some = std::move(none);
      layer.resident_bytes += frame_bytes(*block);
    }
    bytes.moving = true;
    stay(*block);
    coming.push_back({&request, bytes.below, std::move(tokens), bytes.frame});
  }
  request.status = KVASIR_OK;
}

void DeviceBlocks::end(const Coming& one) {
  Block& block = *table_.block(one.request->handle);  // who drops it waits
  Bytes& bytes = block.bytes;
  bytes.moving = false;
  bytes.lost |= one.lease.state == KVASIR_LEASE_FAILED;
  if (one.request->status == KVASIR_OK) {
    bytes.some->add(one.tokens);
    if (bytes.some->full()) bytes.some = nullptr;
    layers_[block.name.layer].pool.came(bytes.use);
  } else if (bytes.some->empty()) {
    give_up_frame(block);
  }
}

void DeviceBlocks::lease_below(std::vector<Coming>& coming, bool is_asked) {
  std::vector<kvasir_block_key> keys;
  std::vector<Coming*> of_key;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    keys.clear();
    of_key.clear();
    for (Coming& one : coming) {
      if (one.lease.k || one.request->status != KVASIR_OK) continue;
      keys.push_back(one.key);
      if (!one.tokens.full()) keys.back().needed = one.tokens.words();
      of_key.push_back(&one);
    }
    if (keys.empty()) return;
    std::vector<kvasir_lease> leases(keys.size());
    const sdk::BlockKeys asked(keys.data(), keys.size(), sizeof keys[0]);
    const sdk::Leases given(leases.data(), leases.size(), sizeof leases[0]);
    if (is_asked)
      below_.acquire(asked, KVASIR_ACQUIRE_FETCH, given);
    else
      below_.acquire_ahead(asked, given);
    for (size_t i = 0; i < keys.size(); ++i) {
      Coming& one = *of_key[i];
      one.lease = leases[i];
      if (attempt == 0) one.request->tier = leases[i].tier;
      if (leases[i].state == KVASIR_LEASE_FAILED) one.request->status = KVASIR_ERR_IO;
    }
  }
  for (Coming* one : of_key)
    if (!one->lease.k) one->request->status = KVASIR_ERR_IO;
}

// Whole blocks one by one, as they lie; then the tokens of the others, packed.
void DeviceBlocks::copy_up(std::vector<Coming>& coming) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t at = 0, n_copies = 0, n_bytes = 0;
  sdk::run_to_end(stream_, [&] {
    for (Coming& one : coming) {
      if (!one.lease.k || !one.tokens.full()) continue;
      const uint64_t bytes = frames_->layout(one.key.kv_head).block_bytes();
      std::memcpy(staging_.data() + at, one.lease.k, bytes);
      cuda::copy_to_device(one.frame, staging_.data() + at, bytes, stream_);
      at += bytes;
      ++n_copies;
    }
    n_copies += copy_rows(coming, at);
  });
  for (Coming& one : coming) {
    if (!one.lease.k) continue;
    one.request->n_bytes = one.tokens.count() * records_of(one.key.kv_head).data_bytes();
    n_bytes += one.request->n_bytes;
  }
  const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(mutex_);
  bytes_up_ += n_bytes;
  n_up_ += n_copies;
  nanos_up_ += static_cast<uint64_t>(time.count());
}

uint64_t DeviceBlocks::copy_rows(const std::vector<Coming>& coming, uint64_t at) {
  rows_.clear();
  std::byte* const packed = staging_.data() + at;
  uint64_t n_bytes = 0;
  const auto pack = [&](const void* from, uint64_t bytes) {
    std::memcpy(packed + n_bytes, from, bytes);
    n_bytes += bytes;
  };
  for (const Coming& one : coming) {
    if (!one.lease.k || one.tokens.full()) continue;
    const Records& records = records_of(one.key.kv_head);
    const auto* block = static_cast<const std::byte*>(one.lease.k);
    const uint64_t frame = sdk::address(one.frame);
    for (uint32_t i = one.tokens.next(0); i < one.tokens.size(); i = one.tokens.next(i + 1)) {
      const Records::Place place = records.place(i);
      rows_.push_back({frame + place.k_begin, frame + place.v_begin, n_bytes});
      pack(block + place.k_begin, place.k_end - place.k_begin);
      pack(block + place.v_begin, place.v_end - place.v_begin);
    }
  }
  if (rows_.empty()) return 0;
  const uint64_t row_bytes = rows_.size() * sizeof rows_[0];
  const cuda::TokenRows call{sent_.ensure(row_bytes),
                             static_cast<uint32_t>(rows_.size()),
                             head_dim_,
                             v_dim_,
                             sdk::kv_type(types_.k),
                             sdk::kv_type(types_.v)};
  const uint64_t there = packed_.ensure(n_bytes);
  cuda::copy_to_device(sent_.data(), rows_.data(), row_bytes, stream_);
  cuda::copy_to_device(packed_.data(), packed, n_bytes, stream_);
  cuda::unpack_rows(call, there, stream_);
  return 1;
}

size_t DeviceBlocks::save(std::span<const uint64_t> handles) noexcept {
  std::vector<Going> going;
  size_t n = 0;
  std::string why;
  try {
    {
      const std::lock_guard lock(mutex_);
      going.reserve(handles.size());
      uint64_t bytes = 0;
      for (const uint64_t handle : handles) {
        Block* block = table_.block(handle);
        const uint64_t more = block ? frame_bytes(*block) : 0;
        if (n != 0 && bytes + more > staging_.size()) break;
        ++n;
        if (!block) continue;
        Bytes& of = block->bytes;
        if (!of.sealed || !of.written || of.moving) continue;  // or it was filled twice
        going.push_back({handle, of.below, *of.written, of.frame, more});
        if (of.by_content) std::copy_n(block->name.hash, 2, going.back().key.hash);
        of.moving = true;
        bytes += more;
      }
    }
    if (!going.empty()) copy_down(going);
  } catch (const std::exception& e) {
    why = e.what();
  }
  const std::lock_guard lock(mutex_);
  for (const Going& one : going) {
    Block& block = *table_.block(one.handle);  // who drops it waits
    block.bytes.moving = false;
    if (!why.empty()) continue;
    block.bytes.below = one.key;
    block.bytes.written = nullptr;
    may_leave(one.handle);
    trim(block.name.layer);
  }
  if (!why.empty() && !std::exchange(stays_told_, true))
    host_.log(
        KVASIR_LOG_WARN,
        "blocks stay on the device, beyond device_blocks: main memory takes no more (" + why + ")");
  moved_.notify_all();
  return std::max<size_t>(n, 1);
}

void DeviceBlocks::copy_down(std::vector<Going>& going) {
  uint64_t at = 0;
  sdk::run_to_end(stream_, [&] {
    for (const Going& one : going) {
      cuda::copy_to_host(staging_.data() + at, one.frame, one.bytes, stream_);
      at += one.bytes;
    }
  });
  at = 0;
  std::vector<kvasir_block_key> keys;
  std::vector<kvasir_lease> leases;
  std::vector<uint64_t> ids;
  for (const Going& one : going) {
    std::memcpy(one.lease.k, staging_.data() + at, one.bytes);
    at += one.bytes;
    keys.push_back(one.key);
    leases.push_back(one.lease);
    ids.push_back(one.lease.lease);
  }
  below_.seal_at_once({keys.data(), keys.size(), sizeof keys[0]},
                      {leases.data(), leases.size(), sizeof leases[0]});
  for (size_t i = 0; i < going.size(); ++i) going[i].key.handle = leases[i].handle;
  below_.release(ids);
  const std::lock_guard lock(mutex_);
  bytes_down_ += at;
}

}  // namespace kvasir::tiered
