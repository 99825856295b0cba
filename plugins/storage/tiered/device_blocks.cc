// What the calls of kvasir.gpu_tiered do to blocks; see device_blocks.h. What moves them is in
// device_moves.cc.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/device_blocks.h"

#include <algorithm>
#include <utility>

#include "plugins/storage/tiered/key_tokens.h"

namespace kvasir::tiered {
namespace {

// With a number that no other block has, what a block is called below until it is full.
constexpr uint64_t kOpened = 0x6b76617369725f67;

template <class T>
sdk::Strided<T> one(T& element) {
  return {&element, 1, sizeof element};
}

}  // namespace

DeviceBlocks::DeviceBlocks(const sdk::Host& host, const sdk::Options& options, Tiered& below)
    : host_(host),
      below_(below),
      types_(options),
      device_blocks_(options.u32("device_blocks")),
      max_bytes_(options.bytes("max_bytes")),
      victim_(static_cast<Victim>(options.choice("cache_strategy"))),
      score_decay_(options.f64("score_decay")) {}

DeviceBlocks::~DeviceBlocks() {
  if (!staging_.empty()) cuda::unpin_memory(staging_.data());
  cuda::destroy_stream(stream_);
}

void DeviceBlocks::bind(const kvasir_geometry& geometry) {
  table_.bind(geometry);
  frames_.emplace(geometry, types_);
  const sdk::KvLayout& all = frames_->layout(KVASIR_ALL_HEADS);
  all_records_ = Records(all, geometry.n_kv_heads, geometry.block_size, 0, 1);
  one_records_ = Records(frames_->layout(0), 1, geometry.block_size, 0, 1);
  head_dim_ = geometry.head_dim;
  v_dim_ = geometry.v_dim;
  layers_.assign(geometry.n_layers, Layer{Pool(victim_, score_decay_)});
  staging_.resize(std::max(kStagingBytes, all.block_bytes()));
  sdk::on_device([&] {
    stream_ = cuda::make_stream();
    cuda::pin_memory(staging_.data(), staging_.size());
  });
}

uint64_t DeviceBlocks::resident_bytes(const kvasir_geometry& geometry) const {
  const uint64_t block = sdk::kv_layout(geometry, types_, geometry.n_kv_heads).block_bytes();
  return std::max<uint64_t>(device_blocks_ * block, 1) * geometry.n_layers;
}

void DeviceBlocks::acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
  std::unique_lock lock(mutex_);
  if (mode == KVASIR_ACQUIRE_WRITE) wait_for_moves("acquire", keys, lock);
  sdk::acquire_all(*this, kName, keys, mode, out);
}

void DeviceBlocks::release(std::span<const uint64_t> leases) {
  const std::lock_guard lock(mutex_);
  sdk::release_all(*this, host_, leases);
  for (uint32_t layer = 0; layer < layers_.size(); ++layer)
    if (std::exchange(layers_[layer].released, false)) end_step(layer);
}

// Equal blocks are kept once, unless the one that is there has left the device.
std::vector<uint64_t> DeviceBlocks::seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
  const std::lock_guard lock(mutex_);
  const auto is_here = [&](uint64_t twin) {
    const Bytes& bytes = table_.block(twin)->bytes;
    return bytes.frame && !bytes.some;
  };
  std::vector<bool> by_content(keys.size());
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const Block* block = table_.block(leases[i].handle);
    by_content[i] = block && !(block->name == sdk::name_of(keys[i]));
  }
  const auto given_up = table_.seal(keys, leases, is_here);
  std::vector<uint64_t> handles;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    Block& block = *table_.block(leases[i].handle);
    if (std::exchange(block.bytes.sealed, true)) {  // shared
      stay(block);
      point(leases[i], keys[i], leases[i].handle);
      continue;
    }
    block.bytes.by_content = by_content[i];
    layers_[block.name.layer].pool.came(block.bytes.use);
    layers_[block.name.layer].resident_bytes += frame_bytes(block);
    handles.push_back(leases[i].handle);
  }
  for (const uint64_t handle : given_up) remove(handle);
  return handles;
}

void DeviceBlocks::drop(const sdk::BlockKeys& keys, uint32_t mode) {
  std::unique_lock lock(mutex_);
  wait_for_moves("drop", keys, lock);
  sdk::drop_all(*this, table_, kName, keys, mode);
}

void DeviceBlocks::heat(const sdk::BlockKeys& keys, std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  std::vector<kvasir_block_key> keys_below;
  std::vector<float> values_below;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const uint64_t handle = table_.find("heat", keys[i], true);
    if (handle == 0) continue;
    Block& block = *table_.block(handle);
    Layer& layer = layers_[block.name.layer];
    if (keys_below.empty()) ++layer.n_told;
    layer.pool.told(block.bytes.use, handle, values[i], layer.n_told);
    keys_below.push_back(block.bytes.below);
    values_below.push_back(values[i]);
  }
  if (keys_below.empty()) return;
  below_.heat({keys_below.data(), keys_below.size(), sizeof keys_below[0]}, values_below);
}

std::vector<Request> DeviceBlocks::requests_of(const sdk::BlockKeys& keys) {
  const std::lock_guard lock(mutex_);
  std::vector<Request> requests;
  for (const kvasir_block_key& key : keys) {
    const uint64_t handle = table_.find("prefetch", key, true);
    Request& request = requests.emplace_back();
    if (handle == 0) continue;
    request.handle = handle;
    request.tokens = missing_of(key, *table_.block(handle));
  }
  return requests;
}

std::vector<Request> DeviceBlocks::missing(const sdk::BlockKeys& keys, bool is_asked,
                                           std::vector<size_t>& key) {
  const std::lock_guard lock(mutex_);
  std::vector<Request> requests;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t handle = table_.find("acquire", keys[i], true);
    Block* block = handle ? table_.block(handle) : nullptr;
    if (!block || !block->bytes.sealed || block->bytes.lost) continue;
    if (is_asked) {  // what is there stays beside what comes
      layers_[block->name.layer].fresh.push_back(handle);
      stay(*block);
    }
    TokenSet tokens = missing_of(keys[i], *block);
    if (tokens.empty()) continue;
    Request& request = requests.emplace_back();
    request.handle = handle;
    request.tokens = std::move(tokens);
    key.push_back(i);
  }
  return requests;
}

void DeviceBlocks::let_go_of_others(const sdk::BlockKeys& keys) {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> named;
  for (const kvasir_block_key& key : keys) named.push_back(table_.find("acquire", key, true));
  for (Layer& layer : layers_)
    std::erase_if(layer.fresh, [&](uint64_t handle) {
      const Block* block = table_.block(handle);
      if (std::find(named.begin(), named.end(), handle) != named.end()) return false;
      if (block && block->bytes.moving) return false;
      may_leave(handle);
      return true;
    });
}

std::vector<kvasir_tier_count> DeviceBlocks::tiers() {
  std::vector<kvasir_tier_count> out = below_.tiers();
  const std::lock_guard lock(mutex_);
  kvasir_tier_count& memory = out.front();
  memory.bytes_read += bytes_up_;
  memory.bytes_written += bytes_down_;
  memory.n_reads = n_up_;
  memory.busy_nanos = memory.read_nanos = nanos_up_;
  memory.tokens = tokens_found_;
  out.insert(out.begin(), {"device", bytes_down_, bytes_up_, tokens_leased_, 0, 0, 0});
  return out;
}

kvasir_lease DeviceBlocks::read_lease(const kvasir_block_key& key) {
  const uint64_t handle = table_.find("acquire", key, true);
  if (handle == 0 || table_.block(handle)->bytes.lost)
    return table_.no_lease(key, KVASIR_LEASE_FAILED);
  const Block& block = *table_.block(handle);
  if (!missing_of(key, block).empty()) return table_.no_lease(key, KVASIR_LEASE_NOT_RESIDENT);
  const Records& records = records_of(block.name.kv_head);
  const bool is_slice = block.name.kv_head != key.kv_head;
  tokens_leased_ += n_needed(key, is_slice, records);
  kvasir_lease out = lease(key, handle, false);
  if (!without_present(block, covered_by(key, is_slice, records)).empty())
    out.state = KVASIR_LEASE_PARTIAL;
  return out;
}

kvasir_lease DeviceBlocks::write_lease(const kvasir_block_key& key,
                                       std::vector<uint64_t>& created) {
  uint64_t handle = table_.find_for_writing(key);
  if (handle == 0)
    created.push_back(handle = create(key));
  else
    reopen(key, *table_.block(handle));
  return lease(key, handle, true);
}

bool DeviceBlocks::give_back(uint64_t lease) noexcept {
  const uint64_t handle = table_.end_lease(lease);
  if (handle == 0) return false;
  layers_[table_.block(handle)->name.layer].released = true;
  may_leave(handle);
  return true;
}

void DeviceBlocks::remove(uint64_t handle) noexcept {
  Block& block = *table_.block(handle);
  stay(block);
  give_up_frame(block);
  close_below(block.bytes);
  table_.remove(handle);
}

TokenSet DeviceBlocks::missing_of(const kvasir_block_key& key, const Block& block) const {
  if (block.bytes.frame && !block.bytes.some) return {};
  const bool is_slice = block.name.kv_head != key.kv_head;
  return without_present(block, needed_by(key, is_slice, records_of(block.name.kv_head)));
}

TokenSet DeviceBlocks::without_present(const Block& block, TokenSet tokens) const {
  if (!block.bytes.frame) return tokens;
  if (!block.bytes.some) return {};
  tokens.remove(*block.bytes.some);
  return tokens;
}

uint64_t DeviceBlocks::create(const kvasir_block_key& key) {
  const uint64_t handle = table_.add(key, {});
  try {
    Bytes& bytes = table_.block(handle)->bytes;
    open_below(key, bytes);
    bytes.frame = allocate(key);
  } catch (...) {
    remove(handle);
    throw;
  }
  return handle;
}

// What is below of a full block is void; that of one which has not gone down yet is to be written.
void DeviceBlocks::reopen(const kvasir_block_key& key, Block& block) {
  Bytes& bytes = block.bytes;
  if (!bytes.sealed) return;
  if (!bytes.frame || bytes.some)
    throw sdk::Error(KVASIR_ERR_IO, table_.where("acquire", key) +
                                        "the block could not be brought back to be written again");
  if (!bytes.written) {
    Bytes before;
    before.below = bytes.below;
    open_below(key, bytes);
    close_below(before);
  }
  stay(block);
  layers_[block.name.layer].resident_bytes -= frame_bytes(block);
  bytes.sealed = bytes.by_content = false;
}

void DeviceBlocks::open_below(const kvasir_block_key& key, Bytes& bytes) {
  kvasir_block_key below{{++n_opened_, kOpened}, key.layer, key.block, key.kv_head, 0, 0, nullptr};
  auto lease = std::make_unique<kvasir_lease>();
  below_.acquire(one<const kvasir_block_key>(below), KVASIR_ACQUIRE_WRITE, one(*lease));
  below.handle = lease->handle;
  bytes.below = below;
  bytes.written = std::move(lease);
}

void DeviceBlocks::close_below(Bytes& bytes) noexcept {
  if (bytes.written) below_.release({&bytes.written->lease, 1});
  bytes.written = nullptr;
  if (bytes.below.handle == 0) return;
  try {
    below_.drop(one<const kvasir_block_key>(bytes.below), KVASIR_DROP_FORGET);
  } catch (const std::exception& e) {
    host_.log(KVASIR_LOG_ERROR, e.what());
  }
}

std::byte* DeviceBlocks::allocate(const kvasir_block_key& key) {
  constexpr const char* kRemedy =
      "lower device_blocks or the budget, shorten the context, or [storage] plugin = \"tiered\"";
  const uint64_t bytes = frames_->layout(key.kv_head).block_bytes();
  for (;;) {
    const uint64_t left = max_bytes_ == 0 ? UINT64_MAX : max_bytes_ - used_bytes_;
    if (bytes > left && !make_room())
      throw sdk::Error(
          KVASIR_ERR_OUT_OF_MEMORY,
          table_.where("acquire", key) + std::to_string(used_bytes_) +
              " bytes of the device are in use and max_bytes = " + std::to_string(max_bytes_) +
              " leaves no space for " + std::to_string(bytes) + " more: raise it, or " + kRemedy);
    if (bytes > left) continue;
    try {
      std::byte* const frame = frames_->allocate(key.kv_head, left);
      used_bytes_ += bytes;
      return frame;
    } catch (const cuda::Error& e) {
      if (!e.is_out_of_memory() || !make_room())
        throw frames_->refusal(table_.where("acquire", key), e, kRemedy);
    }
  }
}

// A frame less, of the layer that has most of those which may leave.
bool DeviceBlocks::make_room() noexcept {
  const Layer* most = nullptr;
  for (const Layer& other : layers_)
    if (other.pool.victim() != 0 && (!most || other.resident_bytes > most->resident_bytes))
      most = &other;
  if (most) evict(most->pool.victim());
  return most != nullptr;
}

void DeviceBlocks::evict(uint64_t handle) noexcept {
  Block& block = *table_.block(handle);
  stay(block);
  give_up_frame(block);
}

void DeviceBlocks::give_up_frame(Block& block) noexcept {
  Bytes& bytes = block.bytes;
  if (!bytes.frame) return;
  frames_->free(block.name.kv_head, std::exchange(bytes.frame, nullptr));
  bytes.some = nullptr;
  used_bytes_ -= frame_bytes(block);
  if (bytes.sealed) layers_[block.name.layer].resident_bytes -= frame_bytes(block);
}

// Moves are short: what a step waits for comes in slices.
void DeviceBlocks::wait_for_moves(const char* function, const sdk::BlockKeys& keys,
                                  std::unique_lock<std::mutex>& lock) {
  moved_.wait(lock, [&] {
    for (const kvasir_block_key& key : keys) {
      const uint64_t handle = table_.find(function, key, true);
      if (handle != 0 && table_.block(handle)->bytes.moving) return false;
    }
    return true;
  });
}

kvasir_lease DeviceBlocks::lease(const kvasir_block_key& key, uint64_t handle, bool write) {
  kvasir_lease out = table_.lease(key, handle, write);
  Block& block = *table_.block(handle);
  stay(block);
  layers_[block.name.layer].pool.used(block.bytes.use, block.n_leases == 1);
  point(out, key, handle);
  return out;
}

void DeviceBlocks::point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
  const Block& block = *table_.block(handle);
  const sdk::KvLayout& layout = layout_of(block);
  const uint64_t skip = table_.first_head(key, handle);
  lease.k = block.bytes.frame + skip * layout.format.k_head_stride;
  lease.v = block.bytes.frame + layout.k_bytes + skip * layout.format.v_head_stride;
}

// Nor may one that has not gone down.
void DeviceBlocks::may_leave(uint64_t handle) noexcept {
  Block* block = table_.block(handle);
  if (!block || block->n_leases != 0) return;
  Bytes& bytes = block->bytes;
  if (!bytes.frame || !bytes.sealed || bytes.written || bytes.moving || bytes.use.is_idle) return;
  layers_[block->name.layer].pool.add_idle(bytes.use, handle);
}

// What came for a layer stays until the step's leases on it end; see Blocks::end_step().
void DeviceBlocks::end_step(uint32_t layer) noexcept {
  std::erase_if(layers_[layer].fresh, [&](uint64_t handle) {
    const Block* block = table_.block(handle);
    if (block && block->bytes.moving) return false;  // it may leave with the next step
    may_leave(handle);
    return true;
  });
  trim(layer);
}

void DeviceBlocks::trim(uint32_t layer_index) noexcept {
  const Layer& layer = layers_[layer_index];
  const uint64_t limit = device_blocks_ * frames_->layout(KVASIR_ALL_HEADS).block_bytes();
  while (layer.resident_bytes > limit) {
    const uint64_t handle = layer.pool.victim();
    if (handle == 0) return;
    evict(handle);
  }
}

}  // namespace kvasir::tiered
