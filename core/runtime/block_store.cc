// Blocks in storage; see block_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/block_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "core/runtime/element_type.h"
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
      formats_(storage.formats()) {}

kvasir_block_key BlockStore::new_key(uint32_t layer_index, uint32_t block, uint32_t kv_head) {
  static std::atomic<uint64_t> counter{0};
  return {{nonce_, ++counter}, layer_index, block, kv_head, 0, 0};
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
    if (made->lease.format >= formats_.size() || !made->lease.k || !made->lease.v)
      throw PluginError(storage_.id(), "acquire", KVASIR_ERR_INTERNAL,
                        "returned a write lease without memory or of an unknown format");
    layer.leases[block] = made->lease;
    layer.blocks[block] = std::move(made);
  }
}

void BlockStore::append(BlockList& layer, uint32_t layer_index, uint32_t kv_len, const float* k,
                        const float* v, uint32_t n) {
  const uint32_t n_blocks = (kv_len + n + block_size_ - 1) / block_size_;
  create_range(layer, layer_index, static_cast<uint32_t>(layer.blocks.size()), n_blocks);
  const auto write = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      const auto pos = static_cast<uint32_t>(kv_len + i);
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
  append_by_storage(layer, kv_len, k, v, n);
  for (uint32_t block = kv_len / block_size_; block < n_blocks; ++block) {
    const uint32_t n_tokens = std::min(block_size_, kv_len + n - block * block_size_);
    set_tokens(layer, block, n_tokens);
  }
}

bool BlockStore::on_host(const kvasir_lease& lease) const {
  return is_host_memory(formats_[lease.format].mem_kind);
}

// The same rows for the blocks that the host does not touch, in one call per run of such blocks.
void BlockStore::append_by_storage(BlockList& layer, uint32_t kv_len, const float* k,
                                   const float* v, uint32_t n) {
  std::vector<kvasir_row_span> spans;
  uint64_t first = 0, end = 0;  // rows of k and v that the spans take
  const auto flush = [&] {
    if (spans.empty()) return;
    const uint64_t k_width = uint64_t{n_kv_heads_} * head_dim_,
                   v_width = uint64_t{n_kv_heads_} * v_dim_;
    const kvasir_view k_rows =
        host_view(k + first * k_width, KVASIR_DTYPE_F32, {end - first, n_kv_heads_, head_dim_});
    const kvasir_view v_rows =
        host_view(v + first * v_width, KVASIR_DTYPE_F32, {end - first, n_kv_heads_, v_dim_});
    if (storage_.reads(KVASIR_MEM_HOST))  // else the bridge copies and counts
      bridge_.add_copied((end - first) * (k_width + v_width) * sizeof(float));
    storage_.write_rows(spans, bridge_.to_reader(storage_, k_rows, k_hold_),
                        bridge_.to_reader(storage_, v_rows, v_hold_));
    spans.clear();
  };
  for (uint32_t pos = kv_len; pos < kv_len + n;) {
    const uint32_t block = pos / block_size_;
    const uint32_t next = std::min((block + 1) * block_size_, kv_len + n);
    if (on_host(layer.leases[block])) {
      flush();
    } else {
      if (spans.empty()) first = pos - kv_len;
      spans.push_back({&layer.leases[block], pos % block_size_, next - pos});
      end = next - kv_len;
    }
    pos = next;
  }
  flush();
}

void BlockStore::seal(BlockList& layer, uint32_t begin, uint32_t end) {
  if (begin >= end) return;
  std::vector<kvasir_block_key> keys;
  std::vector<kvasir_lease> leases;
  for (uint32_t block = begin; block < end; ++block) {
    keys.push_back(layer.blocks[block]->key);
    leases.push_back(layer.blocks[block]->lease);
  }
  storage_.seal(keys, leases.data());
  for (uint32_t block = begin; block < end; ++block) {
    kvasir_lease& lease = leases[block - begin];
    if (lease.format >= formats_.size())
      throw PluginError(storage_.id(), "seal", KVASIR_ERR_INTERNAL, "unknown format in a lease");
    lease.pos_begin = block * block_size_;
    lease.n_tokens = block_size_;
    Block& sealed = *layer.blocks[block];
    sealed.lease = lease;
    sealed.key.handle = lease.handle;
    sealed.sealed = true;
    layer.leases[block] = lease;
  }
}

void BlockStore::make_resident(BlockList& layer, std::span<const uint32_t> blocks) {
  if (stable_) return;
  std::vector<uint32_t> missing;
  for (const uint32_t block : blocks)
    if (layer.blocks[block] && !layer.leases[block].k) missing.push_back(block);
  for (int idle = 0; !missing.empty();) {  // rounds without progress
    std::vector<kvasir_block_key> keys;
    keys.reserve(missing.size());
    for (const uint32_t block : missing) keys.push_back(layer.blocks[block]->key);
    std::vector<kvasir_lease> leases(keys.size());
    if (storage_.acquire(keys, KVASIR_ACQUIRE_READ, leases.data()) != KVASIR_OK)
      throw Error(ErrorKind::kResource, "storage " + storage_.id() +
                                            " cannot hold the blocks of one step at a time: "
                                            "raise its limit or lower the budget");
    std::vector<uint32_t> still;
    std::vector<kvasir_block_key> wanted;
    for (size_t i = 0; i < missing.size(); ++i) {
      const uint32_t block = missing[i];
      kvasir_lease& lease = leases[i];
      if (lease.state == KVASIR_LEASE_FAILED || (idle >= 8 && !lease.k))
        throw PluginError(storage_.id(), "acquire", KVASIR_ERR_IO,
                          "block " + std::to_string(block) + " of layer " +
                              std::to_string(layer.blocks[block]->key.layer) +
                              (lease.state == KVASIR_LEASE_FAILED
                                   ? " is lost"
                                   : " does not become resident: raise the storage's limits"));
      if (lease.state == KVASIR_LEASE_NOT_RESIDENT || !lease.k) {
        still.push_back(block);
        wanted.push_back(layer.blocks[block]->key);
        continue;
      }
      lease.pos_begin = block * block_size_;
      lease.n_tokens = layer.blocks[block]->lease.n_tokens;
      lease.token_pos = nullptr;
      layer.leases[block] = lease;
    }
    idle = still.size() < missing.size() ? 0 : idle + 1;
    missing = std::move(still);
    for (size_t done = 0; done < wanted.size();) {
      const std::vector<kvasir_block_key> rest(wanted.begin() + static_cast<ptrdiff_t>(done),
                                               wanted.end());
      const uint64_t ticket = services_.new_ticket();
      uint32_t accepted = 0;
      storage_.prefetch(rest, 2, ticket, accepted);
      if (accepted == 0) {  // over its budget: acquire what arrived, then ask again
        services_.discard(ticket);
        if (!tickets_.empty()) {  // a speculative transfer may be what fills it
          Completion report;
          services_.wait(tickets_.front(), kTransferTimeout, &report);
          tickets_.erase(tickets_.begin());
          idle = 0;
        }
        break;
      }
      wait_for(ticket, rest);
      done += accepted;
    }
  }
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
  if (stable_) return;
  std::vector<uint32_t> all(layer.blocks.size());
  for (uint32_t block = 0; block < all.size(); ++block) all[block] = block;
  make_resident(layer, all);
}

void BlockStore::prefetch(BlockList& layer, std::span<const uint32_t> blocks) {
  if (stable_ || !storage_.has_prefetch()) return;
  Completion report;
  std::erase_if(tickets_, [&](uint64_t ticket) { return services_.poll(ticket, &report); });
  std::vector<kvasir_block_key> keys;
  for (const uint32_t block : blocks)
    if (layer.blocks[block] && !layer.leases[block].k) keys.push_back(layer.blocks[block]->key);
  if (keys.empty()) return;
  uint32_t accepted = 0;
  const uint64_t ticket = services_.new_ticket();
  storage_.prefetch(keys, 0, ticket, accepted);
  if (accepted > 0)
    tickets_.push_back(ticket);
  else
    services_.discard(ticket);
}

void BlockStore::release_step(BlockList& layer) {
  if (stable_) return;
  std::vector<uint64_t> leases;
  for (size_t block = 0; block < layer.blocks.size(); ++block) {
    kvasir_lease& lease = layer.leases[block];
    if (!layer.blocks[block] || !layer.blocks[block]->sealed || !lease.k) continue;
    if (lease.lease) leases.push_back(lease.lease);
    if (layer.blocks[block]->lease.lease == lease.lease) layer.blocks[block]->lease.lease = 0;
    lease.k = lease.v = nullptr;
    lease.lease = 0;
  }
  if (!leases.empty()) storage_.release(leases);
}

// Rows between blocks, as bytes: the host's own, and by the storage where it alone reaches them.
void BlockStore::copy(std::span<const kvasir_row_copy> copies) const {
  std::vector<kvasir_row_copy> elsewhere;
  for (const kvasir_row_copy& copy : copies) {
    if (!on_host(*copy.from) || !on_host(*copy.to)) {
      elsewhere.push_back(copy);
    } else if (copy.kv_head != KVASIR_ALL_HEADS) {
      copy_on_host(copy, copy.kv_head);
    } else {
      for (uint32_t head = 0; head < n_kv_heads_; ++head) copy_on_host(copy, head);
    }
  }
  if (!elsewhere.empty()) storage_.copy_rows(elsewhere);
}

void BlockStore::copy_on_host(const kvasir_row_copy& copy, uint32_t kv_head) const {
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

void BlockStore::copy_rows(const kvasir_lease& from, kvasir_lease& to, uint32_t n_tokens) const {
  const kvasir_kv_format& a = formats_[from.format];
  const kvasir_kv_format& b = formats_[to.format];
  if (a.dtype_k != b.dtype_k || a.dtype_v != b.dtype_v)
    throw Error(ErrorKind::kInternal,
                "storage " + storage_.id() + " cannot fork: a sealed block's type differs");
  const kvasir_row_copy all[] = {{&from, &to, 0, 0, n_tokens, KVASIR_ALL_HEADS}};
  copy(all);
}

void BlockStore::open_block(BlockList& list, uint32_t layer_index, uint32_t block,
                            uint32_t kv_head) {
  create_range(list, layer_index, block, block + 1, kv_head);
}

void BlockStore::set_tokens(BlockList& list, uint32_t block, uint32_t n_tokens) const {
  list.leases[block].n_tokens = n_tokens;
  list.blocks[block]->lease.n_tokens = n_tokens;
  list.blocks[block]->key.n_tokens = n_tokens;
}

void BlockStore::for_rows(const kvasir_lease& lease, uint32_t n_tokens,
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

uint64_t BlockStore::bytes_of_rows(const kvasir_lease& lease, uint32_t n_tokens) const {
  const kvasir_kv_format& f = formats_[lease.format];
  const uint64_t heads = lease.kv_head == KVASIR_ALL_HEADS ? n_kv_heads_ : 1;
  return heads * n_tokens *
         (kernels::row_bytes(element_type(f.dtype_k), head_dim_) +
          kernels::row_bytes(element_type(f.dtype_v), v_dim_));
}

std::vector<std::byte> BlockStore::save_rows(const kvasir_lease& lease, uint32_t n_tokens) const {
  std::vector<std::byte> out(bytes_of_rows(lease, n_tokens));
  if (!on_host(lease)) {
    storage_.save_rows({&lease, 0, n_tokens}, out);
    bridge_.add_copied(out.size());
    return out;
  }
  std::byte* to = out.data();
  for_rows(lease, n_tokens, [&](const std::byte* row, size_t n) {
    std::memcpy(to, row, n);
    to += n;
  });
  return out;
}

void BlockStore::load_rows(const kvasir_lease& lease, uint32_t n_tokens,
                           std::span<const std::byte> from) const {
  if (!on_host(lease)) {
    storage_.load_rows({&lease, 0, n_tokens}, from);
    bridge_.add_copied(from.size());
    return;
  }
  for_rows(lease, n_tokens, [&](std::byte* row, size_t n) {
    std::memcpy(row, from.data(), n);
    from = from.subspan(n);
  });
}

bool BlockStore::can_pack() const {
  return std::all_of(formats_.begin(), formats_.end(), [&](const kvasir_kv_format& format) {
    return format.dtype_k == formats_[0].dtype_k && format.dtype_v == formats_[0].dtype_v;
  });
}

void BlockStore::pack(LayerState& layer, uint32_t layer_index, uint32_t end,
                      std::vector<std::vector<uint32_t>> live) {
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
    std::vector<kvasir_row_copy> copies;
    uint32_t old_slot = 0;
    for (uint32_t slot = 0; slot < n; ++slot) {
      const uint32_t token = (*to.live)[slot];
      kvasir_row_copy row{&layer.leases[token / block_size_],
                          &to.leases[slot / block_size_],
                          token % block_size_,
                          slot % block_size_,
                          1,
                          head};
      if (token < before.end) {
        const PackedHead& old = before.heads[head];
        while ((*old.live)[old_slot] != token) ++old_slot;
        row.from = &old.leases[old_slot / block_size_];
        row.from_token = old_slot % block_size_;
      }
      kvasir_row_copy* last = copies.empty() ? nullptr : &copies.back();
      if (last && last->from == row.from && last->to == row.to &&
          last->from_token + last->n_tokens == row.from_token)
        ++last->n_tokens;
      else
        copies.push_back(row);
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

void BlockStore::fork(const BlockList& from, BlockList& to, uint32_t layer_index) {
  to = from;
  if (from.blocks.empty() || !from.blocks.back() || from.blocks.back()->sealed) return;
  const auto last = static_cast<uint32_t>(from.blocks.size() - 1);
  const uint32_t n_tokens = from.leases[last].n_tokens;
  to.blocks.pop_back();
  to.leases.pop_back();
  create_range(to, layer_index, last, last + 1);
  copy_rows(from.leases[last], to.leases[last], n_tokens);
  set_tokens(to, last, n_tokens);
}

void BlockStore::truncate(BlockList& layer, uint32_t layer_index, uint32_t kv_len) {
  const uint32_t n_blocks = (kv_len + block_size_ - 1) / block_size_;
  if (layer.blocks.size() > n_blocks) {
    layer.blocks.resize(n_blocks);
    layer.leases.resize(n_blocks);
  }
  const uint32_t n_tokens = kv_len % block_size_;
  if (n_tokens == 0 || !layer.blocks.back()) return;
  const uint32_t last = n_blocks - 1;
  if (layer.blocks[last]->sealed) {  // reopen as a private copy: forks may share the sealed one
    const uint32_t list[] = {last};
    make_resident(layer, list);
    const std::shared_ptr<Block> old = layer.blocks[last];
    const kvasir_lease from = layer.leases[last];
    layer.blocks.pop_back();
    layer.leases.pop_back();
    create_range(layer, layer_index, last, last + 1);
    copy_rows(from, layer.leases[last], n_tokens);
    if (!stable_ && from.lease) storage_.release({from.lease});
    if (old->lease.lease == from.lease) old->lease.lease = stable_ ? old->lease.lease : 0;
  }
  set_tokens(layer, last, n_tokens);
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
