// Blocks in storage; see block_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/block_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "core/runtime/blocks/element_type.h"
#include "kernels/convert.h"

namespace kvasir {
namespace {

constexpr auto kTransferTimeout = std::chrono::milliseconds(30'000);

// Distinguishes the blocks of this process from any other's in a storage that outlives it.
uint64_t run_nonce() {
  static std::atomic<uint64_t> counter{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return static_cast<uint64_t>(now) * 0x9e3779b97f4a7c15ULL + ++counter;
}

}  // namespace

Block::~Block() {
  if (store) store->drop(*this);
}

BlockStore::BlockStore(Storage& storage, MemoryBridge& bridge, HostServices& services,
                       ThreadPool& pool, uint32_t block_size, uint32_t n_kv_heads,
                       uint32_t head_dim, uint32_t v_dim)
    : storage_(storage),
      bridge_(bridge),
      services_(services),
      pool_(pool),
      block_size_(block_size),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      v_dim_(v_dim),
      stable_(storage.stable_leases()),
      nonce_(run_nonce()),
      formats_(storage.formats()) {
  n_formats_ = static_cast<uint32_t>(formats_.size());
}

void BlockStore::set_window(BlockStore& window) {
  window_ = &window;
  formats_.insert(formats_.end(), window.formats_.begin(), window.formats_.end());
  window.first_format_ = n_formats_;
  window.formats_ = formats_;
}

kvasir_block_key BlockStore::new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head) {
  static std::atomic<uint64_t> counter{0};
  return {{nonce_, ++counter}, layer_index, block, kv_head, 0, 0, nullptr};
}

void BlockStore::create_range(BlockList& layer, uint32_t layer_index, uint32_t begin, uint32_t end,
                              uint32_t kv_head) {
  if (begin >= end) return;
  std::vector<kvasir_block_key> keys;
  for (uint32_t block = begin; block < end; ++block)
    keys.push_back(new_key(layer_index, block, kv_head));
  std::vector<kvasir_lease> leases(keys.size());
  const kvasir_status status = storage_.acquire(keys, KVASIR_ACQUIRE_WRITE, leases.data());
  if (status != KVASIR_OK)
    throw Error(ErrorKind::kResource, "storage " + storage_.id() + " has no room for " +
                                          std::to_string(keys.size()) + " more blocks of layer " +
                                          std::to_string(layer_index) +
                                          ": raise its limit or shorten the context (-c)");
  layer.blocks.resize(end);
  layer.leases.resize(end);
  for (uint32_t block = begin; block < end; ++block) {
    auto made = std::make_shared<Block>();
    made->key = keys[block - begin];
    made->lease = leases[block - begin];
    made->lease.pos_begin = block * block_size_;
    made->lease.n_tokens = 0;
    made->lease.token_pos = nullptr;
    made->key.handle = made->lease.handle;
    made->store = this;
    if (made->lease.format >= n_formats_ || !made->lease.k || !made->lease.v)
      throw PluginError(storage_.id(), "acquire", KVASIR_ERR_INTERNAL,
                        "returned a write lease without memory or of an unknown format");
    made->lease.format += first_format_;
    layer.leases[block] = made->lease;
    layer.blocks[block] = std::move(made);
  }
}

bool BlockStore::on_host(const kvasir_lease& lease) const {
  return is_host_memory(formats_[lease.format].mem_kind);
}

// The same rows for the blocks that the host does not touch, in one call per run of such rows.
template <class Position>
void BlockStore::write_by_storage(const BlockList& layer, const float* k, const float* v,
                                  uint64_t n, const Position& position) {
  std::vector<kvasir_token_span> spans;
  std::deque<kvasir_lease> leases;  // of the spans
  const kvasir_lease* last = nullptr;
  uint64_t first = 0;  // row of k and v that the spans begin with
  const auto flush = [&](uint64_t end) {
    if (spans.empty()) return;
    const uint64_t k_width = uint64_t{n_kv_heads_} * head_dim_,
                   v_width = uint64_t{n_kv_heads_} * v_dim_;
    const kvasir_view k_rows =
        host_view(k + first * k_width, KVASIR_DTYPE_F32, {end - first, n_kv_heads_, head_dim_});
    const kvasir_view v_rows =
        host_view(v + first * v_width, KVASIR_DTYPE_F32, {end - first, n_kv_heads_, v_dim_});
    if (storage_.reads(KVASIR_MEM_HOST))  // else the bridge copies and counts
      bridge_.add_copied((end - first) * (k_width + v_width) * sizeof(float));
    storage_.write_tokens(spans, bridge_.to_reader(storage_, k_rows, k_hold_),
                          bridge_.to_reader(storage_, v_rows, v_hold_));
    spans.clear();
    leases.clear();
  };
  for (uint64_t i = 0; i < n; ++i) {
    const kvasir_lease& lease = layer.leases[position(i) / block_size_];
    if (on_host(lease)) {
      flush(i);
      continue;
    }
    if (spans.empty()) first = i;
    const uint32_t token = position(i) % block_size_;
    const bool goes_on = !spans.empty() && last == &lease &&
                         spans.back().first_token + spans.back().n_tokens == token;
    if (goes_on)
      ++spans.back().n_tokens;
    else
      spans.push_back({&leases.emplace_back(own(lease)), token, 1});
    last = &lease;
  }
  flush(n);
}

template <class Position>
void BlockStore::write_tokens(const BlockList& layer, const float* k, const float* v, uint64_t n,
                              const Position& position) {
  const auto write = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t pos = position(i);
      const kvasir_lease& lease = layer.leases[pos / block_size_];
      if (!on_host(lease)) continue;
      const kvasir_kv_format& format = formats_[lease.format];
      auto* k_row = static_cast<std::byte*>(lease.k) + (pos % block_size_) * format.k_token_stride;
      auto* v_row = static_cast<std::byte*>(lease.v) + (pos % block_size_) * format.v_token_stride;
      for (uint32_t head = 0; head < n_kv_heads_; ++head) {
        kernels::convert_from_f32(element_type(format.dtype_k),
                                  k + (i * n_kv_heads_ + head) * head_dim_,
                                  k_row + head * format.k_head_stride, head_dim_);
        kernels::convert_from_f32(element_type(format.dtype_v),
                                  v + (i * n_kv_heads_ + head) * v_dim_,
                                  v_row + head * format.v_head_stride, v_dim_);
      }
    }
  };
  if (n < 16)
    write(0, n, 0);
  else
    pool_.parallel_for(n, 0, write);
  write_by_storage(layer, k, v, n, position);
}

void BlockStore::append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const float* k,
                        const float* v, uint32_t n) {
  if (window_) return window_->append(layer, layer_index, kv_len, k, v, n);
  const uint32_t n_blocks = (kv_len + n + block_size_ - 1) / block_size_;
  create_range(layer, layer_index, static_cast<uint32_t>(layer.blocks.size()), n_blocks);
  write_tokens(layer, k, v, n, [&](uint64_t i) { return static_cast<uint32_t>(kv_len + i); });
  for (uint32_t block = kv_len / block_size_; block < n_blocks; ++block) {
    const uint32_t n_tokens = std::min(block_size_, kv_len + n - block * block_size_);
    set_tokens(layer, block, n_tokens);
  }
}

void BlockStore::rewrite(LayerState& layer, uint32_t layer_index,
                         std::span<const uint32_t> positions, const float* k, const float* v) {
  std::vector<uint32_t> sealed;
  for (const uint32_t pos : positions) {
    const uint32_t block = pos / block_size_;
    if (!layer.blocks[block]->sealed) continue;
    reopen(layer, layer_index, block);
    layer.context_blocks = std::min(layer.context_blocks, block);
    sealed.push_back(block);
  }
  newest().write_tokens(layer, k, v, positions.size(), [&](uint64_t i) { return positions[i]; });
  for (const uint32_t block : sealed) seal(layer, block, block + 1);
}

void BlockStore::read_tokens(BlockList& layer, std::span<const uint32_t> positions, float* k,
                             float* v) {
  std::vector<uint32_t> blocks;
  for (const uint32_t pos : positions)
    if (blocks.empty() || blocks.back() != pos / block_size_) blocks.push_back(pos / block_size_);
  make_resident(layer, blocks);
  for (size_t i = 0; i < positions.size(); ++i) {
    const kvasir_lease& lease = layer.leases[positions[i] / block_size_];
    const kvasir_kv_format& f = formats_[lease.format];
    const uint32_t t = positions[i] % block_size_;
    if (!on_host(lease)) {
      holder(lease).read_by_storage(lease, t, k + i * n_kv_heads_ * head_dim_,
                                    v + i * n_kv_heads_ * v_dim_);
      continue;
    }
    for (uint32_t head = 0; head < n_kv_heads_; ++head) {
      kernels::convert_to_f32(
          element_type(f.dtype_k),
          static_cast<const std::byte*>(lease.k) + head * f.k_head_stride + t * f.k_token_stride,
          k + (i * n_kv_heads_ + head) * head_dim_, head_dim_);
      kernels::convert_to_f32(
          element_type(f.dtype_v),
          static_cast<const std::byte*>(lease.v) + head * f.v_head_stride + t * f.v_token_stride,
          v + (i * n_kv_heads_ + head) * v_dim_, v_dim_);
    }
  }
}

// [kv head][token], the row of K before that of V.
void BlockStore::read_by_storage(const kvasir_lease& lease, uint32_t token, float* k,
                                 float* v) const {
  const kvasir_kv_format& f = formats_[lease.format];
  const kernels::ElementType k_type = element_type(f.dtype_k), v_type = element_type(f.dtype_v);
  const size_t k_bytes = kernels::row_bytes(k_type, head_dim_),
               v_bytes = kernels::row_bytes(v_type, v_dim_);
  std::vector<std::byte> bytes(n_kv_heads_ * (k_bytes + v_bytes));
  const kvasir_lease owned = own(lease);
  storage_.save_tokens({&owned, token, 1}, bytes);
  for (uint32_t head = 0; head < n_kv_heads_; ++head) {
    const std::byte* row = bytes.data() + head * (k_bytes + v_bytes);
    kernels::convert_to_f32(k_type, row, k + head * head_dim_, head_dim_);
    kernels::convert_to_f32(v_type, row + k_bytes, v + head * v_dim_, v_dim_);
  }
}

void BlockStore::seal(BlockList& layer, uint32_t begin, uint32_t end, const ContentHash& content) {
  if (begin >= end) return;
  if (window_ && window_->holds(layer, begin)) return window_->seal(layer, begin, end, content);
  std::vector<kvasir_block_key> keys;
  std::vector<kvasir_lease> leases;
  for (uint32_t block = begin; block < end; ++block) {
    keys.push_back(layer.blocks[block]->key);
    if (const Hash128* name = content.block(block))
      std::copy(name->begin(), name->end(), keys.back().hash);
    leases.push_back(own(layer.blocks[block]->lease));
  }
  storage_.seal(keys, leases.data());
  for (uint32_t block = begin; block < end; ++block) {
    kvasir_lease& lease = leases[block - begin];
    if (lease.format >= n_formats_)
      throw PluginError(storage_.id(), "seal", KVASIR_ERR_INTERNAL, "unknown format in a lease");
    lease.format += first_format_;
    lease.pos_begin = block * block_size_;
    lease.n_tokens = block_size_;
    Block& sealed = *layer.blocks[block];
    sealed.lease = lease;
    sealed.key = keys[block - begin];
    sealed.key.handle = lease.handle;
    sealed.sealed = true;
    layer.leases[block] = lease;
  }
}

void BlockStore::make_resident(BlockList& layer, std::span<const uint32_t> blocks) {
  if (!moves()) return;
  std::vector<NeededBlock> needed;
  needed.reserve(blocks.size());
  for (const uint32_t block : blocks) needed.push_back({block, {}});
  make_resident(layer, std::move(needed));
}

void BlockStore::make_resident(BlockList& layer, std::vector<NeededBlock> needed) {
  if (window_) window_->make_resident(layer, needed);
  if (stable_) return;
  keep_missing(layer, needed);
  const size_t n_asked = needed.size();
  bool first = true;
  for (int idle = 0; !needed.empty();) {  // rounds without progress
    const size_t before = needed.size();
    lease_present(layer, needed, idle < 8);
    if (std::exchange(first, false)) {
      since_.blocks_missed += needed.size();
      since_.blocks_hit += n_asked - needed.size();
    }
    idle = needed.size() < before ? 0 : idle + 1;
    const auto begin = std::chrono::steady_clock::now();
    if (fetch(layer, needed)) idle = 0;
    since_.transfer_wait_nanos +=
        static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
  }
}

void BlockStore::keep_missing(const BlockList& layer, std::vector<NeededBlock>& needed) const {
  std::erase_if(needed, [&](NeededBlock& wanted) {
    if (!holds(layer, wanted.block)) return true;
    const kvasir_lease& lease = layer.leases[wanted.block];
    if (!lease.k || lease.state != KVASIR_LEASE_PARTIAL) return lease.k != nullptr;
    for (const NeededBlock& covered : layer.partial) {
      if (covered.block != wanted.block) continue;
      if (covered.covers(wanted)) return true;
      wanted.add(covered);
      return false;
    }
    return true;
  });
}

std::vector<kvasir_block_key> BlockStore::keys_of(const BlockList& layer,
                                                  std::span<const NeededBlock> needed) const {
  std::vector<kvasir_block_key> keys;
  keys.reserve(needed.size());
  for (const NeededBlock& wanted : needed) {
    keys.push_back(layer.blocks[wanted.block]->key);
    if (!wanted.tokens.empty()) keys.back().needed = wanted.tokens.data();
  }
  return keys;
}

void BlockStore::lease_present(BlockList& layer, std::vector<NeededBlock>& missing, bool may_lack) {
  std::vector<kvasir_lease> leases(missing.size());
  if (storage_.acquire(keys_of(layer, missing), KVASIR_ACQUIRE_READ, leases.data()) != KVASIR_OK)
    throw Error(ErrorKind::kResource, "storage " + storage_.id() +
                                          " cannot hold the blocks of one step at a time: "
                                          "raise its limit or lower the budget");
  std::vector<NeededBlock> still;
  for (size_t i = 0; i < missing.size(); ++i) {
    const kvasir_lease& lease = leases[i];
    const uint32_t block = missing[i].block;
    const bool lost = lease.state == KVASIR_LEASE_FAILED;
    if (lost || (!may_lack && !lease.k))
      throw PluginError(
          storage_.id(), "acquire", KVASIR_ERR_IO,
          "block " + std::to_string(block) + " of layer " +
              std::to_string(layer.blocks[block]->key.layer) +
              (lost ? " is lost" : " does not become resident: raise the storage's limits"));
    if (lease.state == KVASIR_LEASE_NOT_RESIDENT || !lease.k)
      still.push_back(std::move(missing[i]));
    else
      take_lease(layer, missing[i], lease);
  }
  missing = std::move(still);
}

void BlockStore::take_lease(BlockList& layer, const NeededBlock& needed, kvasir_lease lease) {
  const uint32_t block = needed.block;
  lease.format += first_format_;
  lease.pos_begin = block * block_size_;
  lease.n_tokens = layer.blocks[block]->lease.n_tokens;
  lease.token_pos = nullptr;
  // Parts made before point to the bytes of the lease it takes the place of.
  if (const uint64_t before = layer.leases[block].lease) superseded_.push_back(before);
  if (layer.leases[block].state == KVASIR_LEASE_PARTIAL)
    std::erase_if(layer.partial, [&](const NeededBlock& old) { return old.block == block; });
  layer.leases[block] = lease;
  if (lease.state == KVASIR_LEASE_PARTIAL) layer.partial.push_back(needed);
}

bool BlockStore::fetch(const BlockList& layer, std::span<const NeededBlock> missing) {
  const std::vector<kvasir_block_key> wanted = keys_of(layer, missing);
  for (size_t done = 0; done < wanted.size();) {
    const std::vector<kvasir_block_key> rest(wanted.begin() + static_cast<ptrdiff_t>(done),
                                             wanted.end());
    const uint64_t ticket = services_.new_ticket();
    uint32_t accepted = 0;
    storage_.prefetch(rest, 2, ticket, accepted);
    if (accepted == 0) {  // over its budget: acquire what arrived, then ask again
      services_.discard(ticket);
      if (tickets_.empty()) return false;
      Completion report;  // a speculative transfer may be what fills it
      services_.wait(tickets_.front(), kTransferTimeout, &report);
      tickets_.erase(tickets_.begin());
      return true;
    }
    wait_for(ticket, rest);
    done += accepted;
  }
  return false;
}

void BlockStore::wait_for(uint64_t ticket, std::span<const kvasir_block_key> keys) {
  Completion report;
  if (!services_.wait(ticket, kTransferTimeout, &report)) {
    storage_.cancel(ticket);
    throw PluginError(storage_.id(), "prefetch", KVASIR_ERR_IO, "no report within 30 s");
  }
  for (size_t i = 0; i < report.block_status.size() && i < keys.size(); ++i)
    if (report.block_status[i] < 0)
      throw PluginError(storage_.id(), "prefetch", report.block_status[i],
                        "block " + std::to_string(keys[i].block) + " of layer " +
                            std::to_string(keys[i].layer) + " could not be read back");
  if (report.status < 0 && report.block_status.empty())
    throw PluginError(storage_.id(), "prefetch", report.status, "transfer failed");
}

void BlockStore::make_all_resident(BlockList& layer) {
  if (!moves()) return;
  std::vector<uint32_t> all(layer.blocks.size());
  for (uint32_t block = 0; block < all.size(); ++block) all[block] = block;
  make_resident(layer, all);
}

void BlockStore::prefetch(BlockList& layer, std::vector<NeededBlock> needed) {
  if (window_) window_->prefetch(layer, needed);
  if (stable_ || !storage_.has_prefetch()) return;
  Completion report;
  std::erase_if(tickets_, [&](uint64_t ticket) { return services_.poll(ticket, &report); });
  keep_missing(layer, needed);
  if (needed.empty()) return;
  uint32_t accepted = 0;
  const uint64_t ticket = services_.new_ticket();
  storage_.prefetch(keys_of(layer, needed), 0, ticket, accepted);
  if (accepted > 0)
    tickets_.push_back(ticket);
  else
    services_.discard(ticket);
}

void BlockStore::count_transfers(Engagement& into) {
  into.blocks_hit += std::exchange(since_.blocks_hit, 0);
  into.blocks_missed += std::exchange(since_.blocks_missed, 0);
  into.transfer_wait_nanos += std::exchange(since_.transfer_wait_nanos, 0);
  if (window_) {  // its tiers have no place in the report, which is the context's
    into.blocks_hit += std::exchange(window_->since_.blocks_hit, 0);
    into.blocks_missed += std::exchange(window_->since_.blocks_missed, 0);
    into.transfer_wait_nanos += std::exchange(window_->since_.transfer_wait_nanos, 0);
  }
  const std::vector<kvasir_tier_count> now = storage_.count_tiers();
  counted_.resize(now.size());
  into.tiers.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    TierTraffic& tier = into.tiers[i];
    tier.tier = now[i].name;
    tier.bytes_read += now[i].bytes_read - counted_[i].bytes_read;
    tier.bytes_written += now[i].bytes_written - counted_[i].bytes_written;
    tier.tokens += now[i].tokens - counted_[i].tokens;
  }
  counted_ = now;
}

void BlockStore::release_step(BlockList& layer) {
  if (window_) window_->release_step(layer);
  if (stable_) return;
  std::vector<uint64_t> leases = std::exchange(superseded_, {});
  layer.partial.clear();
  for (size_t block = 0; block < layer.blocks.size(); ++block) {
    kvasir_lease& lease = layer.leases[block];
    if (!holds(layer, static_cast<uint32_t>(block)) || !layer.blocks[block]->sealed || !lease.k)
      continue;
    if (lease.lease) leases.push_back(lease.lease);
    if (layer.blocks[block]->lease.lease == lease.lease) layer.blocks[block]->lease.lease = 0;
    lease.k = lease.v = nullptr;
    lease.lease = 0;
    lease.state = KVASIR_LEASE_RESIDENT;
  }
  if (!leases.empty()) storage_.release(leases);
}

// Rows between blocks, as bytes: the host's own, and by the storage where it alone reaches them.
void BlockStore::copy(std::span<const kvasir_token_copy> copies) const {
  std::vector<kvasir_token_copy> elsewhere;
  for (const kvasir_token_copy& copy : copies) {
    if (!on_host(*copy.from) || !on_host(*copy.to)) {
      elsewhere.push_back(copy);
    } else if (copy.kv_head != KVASIR_ALL_HEADS) {
      copy_on_host(copy, copy.kv_head);
    } else {
      for (uint32_t head = 0; head < n_kv_heads_; ++head) copy_on_host(copy, head);
    }
  }
  if (elsewhere.empty()) return;
  std::deque<kvasir_lease> leases;
  for (kvasir_token_copy& one : elsewhere) {
    if (first_format_ == 0) break;  // as the storage counts them already
    one.from = &leases.emplace_back(own(*one.from));
    one.to = &leases.emplace_back(own(*one.to));
  }
  storage_.copy_tokens(elsewhere);
}

void BlockStore::copy_on_host(const kvasir_token_copy& copy, uint32_t kv_head) const {
  const kvasir_kv_format& a = formats_[copy.from->format];
  const kvasir_kv_format& b = formats_[copy.to->format];
  const uint64_t a_head = copy.from->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  const uint64_t b_head = copy.to->kv_head == KVASIR_ALL_HEADS ? kv_head : 0;
  const auto* k = static_cast<const std::byte*>(copy.from->k) + a_head * a.k_head_stride;
  const auto* v = static_cast<const std::byte*>(copy.from->v) + a_head * a.v_head_stride;
  auto* to_k = static_cast<std::byte*>(copy.to->k) + b_head * b.k_head_stride;
  auto* to_v = static_cast<std::byte*>(copy.to->v) + b_head * b.v_head_stride;
  const uint64_t k_bytes = kernels::row_bytes(element_type(a.dtype_k), head_dim_);
  const uint64_t v_bytes = kernels::row_bytes(element_type(a.dtype_v), v_dim_);
  for (uint64_t t = 0; t < copy.n_tokens; ++t) {
    const uint64_t from = copy.from_token + t, to = copy.to_token + t;
    std::memcpy(to_k + to * b.k_token_stride, k + from * a.k_token_stride, k_bytes);
    std::memcpy(to_v + to * b.v_token_stride, v + from * a.v_token_stride, v_bytes);
  }
}

// Rows as bytes through the host.
void BlockStore::carry_over(const kvasir_lease& from, kvasir_lease& to, uint32_t n_tokens) const {
  const kvasir_kv_format &a = formats_[from.format], &b = formats_[to.format];
  std::vector<std::byte> rows = save_tokens(from, n_tokens);
  if (a.dtype_k == b.dtype_k && a.dtype_v == b.dtype_v) return load_tokens(to, n_tokens, rows);
  std::vector<std::byte> turned(bytes_of_tokens(to, n_tokens));
  std::vector<float> values(std::max(head_dim_, v_dim_));
  const std::byte* at = rows.data();
  std::byte* out = turned.data();
  const auto turn = [&](uint32_t from_type, uint32_t to_type, uint32_t width) {
    kernels::convert_to_f32(element_type(from_type), at, values.data(), width);
    kernels::convert_from_f32(element_type(to_type), values.data(), out, width);
    at += kernels::row_bytes(element_type(from_type), width);
    out += kernels::row_bytes(element_type(to_type), width);
  };
  for (uint64_t row = 0; row < uint64_t{n_kv_heads_} * n_tokens; ++row) {
    turn(a.dtype_k, b.dtype_k, head_dim_);
    turn(a.dtype_v, b.dtype_v, v_dim_);
  }
  load_tokens(to, n_tokens, turned);
}

void BlockStore::leave_window(LayerState& layer, uint32_t layer_index, uint32_t end) {
  if (!window_) return;
  const auto is_next = [&](uint32_t block) { return window_->holds(layer, block); };
  for (uint32_t begin = layer.context_blocks; begin < end;) {
    if (!is_next(begin)) {
      ++begin;
      continue;
    }
    uint32_t stop = begin;
    std::vector<uint32_t> blocks;
    while (stop < end && is_next(stop)) blocks.push_back(stop++);
    make_resident(layer, blocks);
    BlockList fresh;
    fresh.blocks.resize(begin);
    fresh.leases.resize(begin);
    create_range(fresh, layer_index, begin, stop);
    for (const uint32_t block : blocks) {
      carry_over(layer.leases[block], fresh.leases[block], block_size_);
      set_tokens(fresh, block, block_size_);
    }
    for (const uint32_t block : blocks) replace(layer, block, fresh);
    seal(layer, begin, stop);
    begin = stop;
  }
  layer.context_blocks = std::max(layer.context_blocks, end);
}

void BlockStore::replace(BlockList& layer, uint32_t block, const BlockList& fresh) {
  const std::shared_ptr<Block> old = layer.blocks[block];
  const kvasir_lease from = layer.leases[block];
  layer.blocks[block] = fresh.blocks[block];
  layer.leases[block] = fresh.leases[block];
  std::erase_if(layer.partial, [&](const NeededBlock& part) { return part.block == block; });
  if (old->store->stable_) return;
  if (from.lease) old->store->storage_.release({from.lease});
  if (old->lease.lease == from.lease) old->lease.lease = 0;
}

void BlockStore::copy_tokens(const kvasir_lease& from, kvasir_lease& to, uint32_t n_tokens) const {
  if (in_window(from) != in_window(to)) return carry_over(from, to, n_tokens);
  if (in_window(from)) return window_->copy_tokens(from, to, n_tokens);
  const kvasir_kv_format& a = formats_[from.format];
  const kvasir_kv_format& b = formats_[to.format];
  if (a.dtype_k != b.dtype_k || a.dtype_v != b.dtype_v)
    throw Error(ErrorKind::kInternal,
                "storage " + storage_.id() + " cannot fork: a sealed block's type differs");
  const kvasir_token_copy all[] = {{&from, &to, 0, 0, n_tokens, KVASIR_ALL_HEADS}};
  copy(all);
}

void BlockStore::open_block(BlockList& list, uint32_t layer_index, uint32_t block, uint32_t kv_head,
                            bool in_window) {
  (in_window ? *window_ : *this).create_range(list, layer_index, block, block + 1, kv_head);
}

void BlockStore::set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const {
  list.leases[block].n_tokens = n_tokens;
  list.blocks[block]->lease.n_tokens = n_tokens;
  list.blocks[block]->key.n_tokens = n_tokens;
}

void BlockStore::for_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                            const std::function<void(std::byte*, size_t)>& fn) const {
  const kvasir_kv_format& f = formats_[lease.format];
  const uint32_t heads = lease.kv_head == KVASIR_ALL_HEADS ? n_kv_heads_ : 1;
  for (uint32_t head = 0; head < heads; ++head)
    for (uint32_t t = 0; t < n_tokens; ++t) {
      fn(static_cast<std::byte*>(lease.k) + head * f.k_head_stride + t * f.k_token_stride,
         kernels::row_bytes(element_type(f.dtype_k), head_dim_));
      fn(static_cast<std::byte*>(lease.v) + head * f.v_head_stride + t * f.v_token_stride,
         kernels::row_bytes(element_type(f.dtype_v), v_dim_));
    }
}

uint64_t BlockStore::bytes_of_tokens(const kvasir_lease& lease, uint32_t n_tokens) const {
  const kvasir_kv_format& f = formats_[lease.format];
  const uint64_t heads = lease.kv_head == KVASIR_ALL_HEADS ? n_kv_heads_ : 1;
  return heads * n_tokens *
         (kernels::row_bytes(element_type(f.dtype_k), head_dim_) +
          kernels::row_bytes(element_type(f.dtype_v), v_dim_));
}

std::vector<std::byte> BlockStore::save_tokens(const kvasir_lease& lease, uint32_t n_tokens) const {
  if (in_window(lease)) return window_->save_tokens(lease, n_tokens);
  std::vector<std::byte> out(bytes_of_tokens(lease, n_tokens));
  if (!on_host(lease)) {
    const kvasir_lease owned = own(lease);
    storage_.save_tokens({&owned, 0, n_tokens}, out);
    bridge_.add_copied(out.size());
    return out;
  }
  std::byte* to = out.data();
  for_tokens(lease, n_tokens, [&](const std::byte* row, size_t n) {
    std::memcpy(to, row, n);
    to += n;
  });
  return out;
}

void BlockStore::load_tokens(const kvasir_lease& lease, uint32_t n_tokens,
                             std::span<const std::byte> from) const {
  if (in_window(lease)) return window_->load_tokens(lease, n_tokens, from);
  if (!on_host(lease)) {
    const kvasir_lease owned = own(lease);
    storage_.load_tokens({&owned, 0, n_tokens}, from);
    bridge_.add_copied(from.size());
    return;
  }
  for_tokens(lease, n_tokens, [&](std::byte* row, size_t n) {
    std::memcpy(row, from.data(), n);
    from = from.subspan(n);
  });
}

kvasir_lease BlockStore::copy_to_host(const kvasir_lease& lease,
                                      std::vector<std::byte>& rows) const {
  const kvasir_kv_format& f = formats_[0];
  const auto extent = [&](uint64_t head_stride, uint64_t token_stride, uint64_t row) {
    return (n_kv_heads_ - 1) * head_stride + (block_size_ - 1) * token_stride + row;
  };
  const uint64_t k_bytes = (extent(f.k_head_stride, f.k_token_stride,
                                   kernels::row_bytes(element_type(f.dtype_k), head_dim_)) +
                            63) /
                           64 * 64;
  const uint64_t v_bytes = extent(f.v_head_stride, f.v_token_stride,
                                  kernels::row_bytes(element_type(f.dtype_v), v_dim_));
  rows.resize(k_bytes + v_bytes + 63);
  const auto misaligned = reinterpret_cast<uintptr_t>(rows.data()) % 64;
  kvasir_lease copy = lease;
  copy.format = 0;
  copy.k = rows.data() + (misaligned ? 64 - misaligned : 0);
  copy.v = static_cast<std::byte*>(copy.k) + k_bytes;
  carry_over(lease, copy, lease.n_tokens);
  return copy;
}

bool BlockStore::can_pack() const {
  const auto of_one_type = [](std::span<const kvasir_kv_format> formats) {
    return std::all_of(formats.begin(), formats.end(), [&](const kvasir_kv_format& format) {
      return format.dtype_k == formats[0].dtype_k && format.dtype_v == formats[0].dtype_v;
    });
  };
  const std::span all(formats_);
  return of_one_type(all.subspan(first_format_, n_formats_)) &&
         of_one_type(all.subspan(first_format_ + n_formats_));
}

void BlockStore::pack(LayerState& layer, uint32_t layer_index, uint32_t end,
                      std::vector<std::vector<uint32_t>> live) {
  leave_window(layer, layer_index, end / block_size_);
  PackedTokens& before = layer.packed;
  std::vector<uint32_t> blocks(end / block_size_ - before.end / block_size_);
  std::iota(blocks.begin(), blocks.end(), before.end / block_size_);
  make_resident(layer, blocks);
  PackedTokens packed;
  packed.end = end;
  packed.heads.resize(n_kv_heads_);
  for (uint32_t head = 0; head < n_kv_heads_; ++head) {
    const auto n = static_cast<uint32_t>(live[head].size());
    PackedHead& to = packed.heads[head];
    to.live = std::make_shared<const std::vector<uint32_t>>(std::move(live[head]));
    create_range(to, layer_index, 0, (n + block_size_ - 1) / block_size_, head);
    if (before.end) make_all_resident(before.heads[head]);
    std::vector<kvasir_token_copy> copies;
    uint32_t old_slot = 0;
    for (uint32_t slot = 0; slot < n; ++slot) {
      const uint32_t token = (*to.live)[slot];
      kvasir_token_copy copy{&layer.leases[token / block_size_],
                             &to.leases[slot / block_size_],
                             token % block_size_,
                             slot % block_size_,
                             1,
                             head};
      if (token < before.end) {
        const PackedHead& old = before.heads[head];
        while ((*old.live)[old_slot] != token) ++old_slot;
        copy.from = &old.leases[old_slot / block_size_];
        copy.from_token = old_slot % block_size_;
      }
      kvasir_token_copy* last = copies.empty() ? nullptr : &copies.back();
      if (last && last->from == copy.from && last->to == copy.to &&
          last->from_token + last->n_tokens == copy.from_token)
        ++last->n_tokens;
      else
        copies.push_back(copy);
    }
    copy(copies);
    for (uint32_t block = 0; block < to.blocks.size(); ++block)
      set_tokens(to, block, std::min(block_size_, n - block * block_size_));
    seal(to, 0, n / block_size_);
    release_step(to);
    if (before.end) release_step(before.heads[head]);
  }
  release_step(layer);
  for (const uint32_t block : blocks) {
    layer.blocks[block].reset();
    layer.leases[block] = {};
  }
  before = std::move(packed);
}

void BlockStore::share(const BlockList& from, BlockList& to) const {
  to.blocks = from.blocks;
  to.leases = from.leases;
  to.partial.clear();
  if (!moves()) return;
  for (size_t block = 0; block < to.blocks.size(); ++block) {
    const Block* held = to.blocks[block].get();
    if (!held || !held->sealed || held->store->stable_) continue;
    to.leases[block].k = to.leases[block].v = nullptr;  // what `from` has leased, `from` releases
    to.leases[block].lease = 0;
  }
}

void BlockStore::fork(const BlockList& from, BlockList& to, uint32_t layer_index) {
  share(from, to);  // without leases that a call which failed has left
  if (from.blocks.empty() || !from.blocks.back() || from.blocks.back()->sealed) return;
  const auto last = static_cast<uint32_t>(from.blocks.size() - 1);
  const uint32_t n_tokens = from.leases[last].n_tokens;
  to.blocks.pop_back();
  to.leases.pop_back();
  newest().create_range(to, layer_index, last, last + 1);
  copy_tokens(from.leases[last], to.leases[last], n_tokens);
  set_tokens(to, last, n_tokens);
}

// A private copy of a sealed block, which forks may share, ready to be written.
void BlockStore::reopen(BlockList& layer, uint32_t layer_index, uint32_t block) {
  const uint32_t list[] = {block};
  make_resident(layer, list);
  const kvasir_lease from = layer.leases[block];
  BlockList fresh;
  fresh.blocks.resize(block);
  fresh.leases.resize(block);
  newest().create_range(fresh, layer_index, block, block + 1);
  copy_tokens(from, fresh.leases[block], from.n_tokens);
  set_tokens(fresh, block, from.n_tokens);
  replace(layer, block, fresh);
}

void BlockStore::truncate(LayerState& layer, uint32_t layer_index, uint32_t kv_len) {
  layer.context_blocks = std::min(layer.context_blocks, kv_len / block_size_);
  const uint32_t n_blocks = (kv_len + block_size_ - 1) / block_size_;
  if (layer.blocks.size() > n_blocks) {
    layer.blocks.resize(n_blocks);
    layer.leases.resize(n_blocks);
  }
  const uint32_t n_tokens = kv_len % block_size_;
  if (n_tokens == 0 || !layer.blocks.back()) return;
  if (layer.blocks.back()->sealed) reopen(layer, layer_index, n_blocks - 1);
  set_tokens(layer, n_blocks - 1, n_tokens);
}

void BlockStore::drop(Block& block) noexcept {
  try {
    if (block.lease.lease) storage_.release({block.lease.lease});
    storage_.drop({block.key}, KVASIR_DROP_FORGET);
  } catch (const std::exception& e) {
    services_.log(KVASIR_LOG_ERROR, storage_.id(), e.what());
  }
}

}  // namespace kvasir
