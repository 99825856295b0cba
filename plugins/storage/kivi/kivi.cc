// Storage in main memory that keeps full blocks as KIVI does: K quantised per channel, V per token,
// in 2 or 4 bits. Who leases a full block gets its rows in f16, expanded into memory that other
// blocks use afterwards. Liu et al. 2024, arXiv:2402.02750.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/storage/kivi/groups.h"
#include "plugins/storage/kivi/row_pool.h"

namespace {
using namespace kvasir;
using kivi::RowPool;
using kivi::RowScratch;
using kivi::RowShape;

constexpr std::array kOptions = {
    sdk::int_option({.key = "k_bits", .help = "of an element of K: 2 or 4", .unit = "bits"}, 4, 2,
                    4),
    sdk::int_option({.key = "v_bits", .help = "of an element of V: 2 or 4", .unit = "bits"}, 4, 2,
                    4),
    sdk::int_option({.key = "group_size",
                     .help = "elements that share a scale: tokens of a channel of K, channels of a "
                             "token of V; 32, 64 or 128"},
                    32, 32, 128),
};

uint32_t one_of(const sdk::Options& options, const char* key,
                std::initializer_list<uint32_t> values) {
  const uint32_t value = options.u32(key);
  std::string text;
  for (const uint32_t v : values) {
    if (v == value) return value;
    text += (text.empty() ? "" : ", ") + std::to_string(v);
  }
  sdk::fail_invalid("kivi: " + std::string(key) + " = " + std::to_string(value) + ": expected " +
                    text);
}

// Open blocks lease rows of format 0. Sealed ones lease format 1, which is laid out alike: their
// rows are not what was written.
class Kivi {
 public:
  static constexpr kvasir_desc kDesc =
      sdk::describe({.kind = KVASIR_KIND_STORAGE,
                     .id = "kvasir.kivi",
                     .version = "0.1.0",
                     .name = "KIVI",
                     .vendor = "Kvasir",
                     .license = "Apache-2.0",
                     .summary = "Keeps full blocks in 2 or 4 bits, K per channel and V per token.",
                     .options = kOptions,
                     .dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16)});

  Kivi(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        k_bits_(one_of(options, "k_bits", {2, 4})),
        v_bits_(one_of(options, "v_bits", {2, 4})),
        group_size_(one_of(options, "group_size", {32, 64, 128})) {}

  void validate(const kvasir_geometry& geometry) const {
    const auto text = [&](const char* what, uint32_t n, const char* remedy) {
      return "kivi: " + std::string(what) + " = " + std::to_string(n) +
             " is not a multiple of group_size = " + std::to_string(group_size_) + ": " + remedy;
    };
    if (geometry.block_size % group_size_ != 0)
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED, text("block_size", geometry.block_size,
                                                    "set block_size of [cache] to a multiple"));
    if (geometry.v_dim % group_size_ != 0)
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED, text("the width of a head of V", geometry.v_dim,
                                                    "set group_size lower, or use dram"));
    if (geometry.head_dim % 4 != 0)
      throw sdk::Error(KVASIR_ERR_UNSUPPORTED,
                       "kivi: heads of K have " + std::to_string(geometry.head_dim) +
                           " channels, which do not fill whole bytes: use dram");
  }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    const auto [k, v] = shapes(geometry);
    const uint64_t blocks = sdk::blocks_per_sequence(geometry) * geometry.max_sequences;
    out.n_tiers = 1;
    out.block_bytes = geometry.n_kv_heads * (k.bytes() + v.bytes());
    // The rows of a layer that a dense step leases, and the tables.
    out.overhead_bytes = blocks * layout_of(geometry, geometry.n_kv_heads).block_bytes() +
                         blocks * geometry.n_layers * Table::bytes_per_block();
  }

  void bind(const kvasir_geometry& geometry) {
    table_.bind(geometry);
    n_heads_ = geometry.n_kv_heads;
    std::tie(k_, v_) = shapes(geometry);
    all_heads_ = layout_of(geometry, n_heads_);
    one_head_ = layout_of(geometry, 1);
    all_rows_.emplace(all_heads_.block_bytes());
    one_rows_.emplace(one_head_.block_bytes());
    scratch_.resize(host_.max_workers());
    for (RowScratch& scratch : scratch_)
      for (const RowShape& shape : {k_, v_}) scratch.reserve(shape);
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    n_formats = 2;
    if (capacity < 2) throw sdk::Error(KVASIR_ERR_CAPACITY, "kivi: formats needs space for 2");
    out[0] = out[1] = all_heads_.format;
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const std::lock_guard lock(mutex_);
    to_expand_.clear();
    sdk::acquire_all(*this, "kivi", keys, mode, out);
    expand_all();
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    sdk::release_all(*this, host_, leases);
  }

  // Each block is quantised here, once; equal ones are kept once.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<std::byte[]>> codes;  // before what must not fail half way
    for (const kvasir_block_key& key : keys) codes.push_back(new_codes(key.kv_head));
    to_expand_.clear();
    to_expand_.reserve(keys.size());
    const auto given_up = table_.seal(keys, leases, [](uint64_t) { return true; });
    for (const uint64_t handle : given_up) remove(handle);  // their rows are for those they share
    for (uint64_t i = 0; i < keys.size(); ++i) {
      Block& block = *table_.block(leases[i].handle);
      if (block.bytes.codes) {  // shared
        add_rows(leases[i].handle);
      } else {
        block.bytes.codes = std::move(codes[i]);
        to_expand_.push_back({leases[i].handle, true});
      }
      point(leases[i], keys[i], leases[i].handle);
    }
    expand_all();
  }

  // There is no other tier: UNREF and FORGET both free the bytes.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    const std::lock_guard lock(mutex_);
    sdk::drop_all(*this, table_, "kivi", keys, mode);
  }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    add_rows(handle);
    return lease(key, handle, false);
  }
  // A sealed block that is written again is its rows until it is sealed once more.
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = table_.find_for_writing(key);
    if (handle == 0) {
      Bytes bytes;
      bytes.rows = pool_of(key.kv_head).take();
      created.push_back(handle = add(key, std::move(bytes)));
    } else {
      reopen(*table_.block(handle));
    }
    return lease(key, handle, true);
  }
  bool give_back(uint64_t lease) noexcept {
    const uint64_t handle = table_.end_lease(lease);
    if (handle == 0) return false;
    Block& block = *table_.block(handle);
    if (block.n_leases == 0 && block.bytes.codes) free_rows(block);
    return true;
  }
  void remove(uint64_t handle) noexcept {
    free_rows(*table_.block(handle));
    table_.remove(handle);
  }

 private:
  struct Bytes {
    std::unique_ptr<std::byte[]> codes;  // of a sealed block: by kv head K, then V
    std::byte* rows = nullptr;           // of an open one, or while it is leased
  };
  using Table = sdk::BlockTable<Bytes>;
  using Block = Table::Block;
  struct Work {
    uint64_t handle;
    bool is_new;  // its codes are to be made first
  };

  std::pair<RowShape, RowShape> shapes(const kvasir_geometry& g) const {
    return {{g.block_size, g.head_dim, group_size_, k_bits_, true},
            {g.block_size, g.v_dim, group_size_, v_bits_, false}};
  }
  static sdk::KvLayout layout_of(const kvasir_geometry& geometry, uint32_t n_heads) {
    return sdk::kv_layout(geometry, sdk::KvTypes(), n_heads);
  }
  const sdk::KvLayout& layout_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? all_heads_ : one_head_;
  }
  uint32_t n_heads_of(const Block& block) const {
    return block.name.kv_head == KVASIR_ALL_HEADS ? n_heads_ : 1;
  }
  uint64_t head_bytes() const { return k_.bytes() + v_.bytes(); }
  std::unique_ptr<std::byte[]> new_codes(uint32_t kv_head) const {
    return std::make_unique<std::byte[]>((kv_head == KVASIR_ALL_HEADS ? n_heads_ : 1) *
                                         head_bytes());
  }
  RowPool& pool_of(uint32_t kv_head) {
    return kv_head == KVASIR_ALL_HEADS ? *all_rows_ : *one_rows_;
  }

  uint64_t add(const kvasir_block_key& key, Bytes bytes) {
    std::byte* const rows = bytes.rows;
    try {
      return table_.add(key, std::move(bytes));
    } catch (...) {
      pool_of(key.kv_head).free(rows);
      throw;
    }
  }
  void free_rows(Block& block) noexcept {
    if (block.bytes.rows)
      pool_of(block.name.kv_head).free(std::exchange(block.bytes.rows, nullptr));
  }
  // Space for them; expand_all() fills it.
  void add_rows(uint64_t handle) {
    Block& block = *table_.block(handle);
    if (block.bytes.rows) return;
    to_expand_.push_back({handle, false});
    block.bytes.rows = pool_of(block.name.kv_head).take();
  }
  void reopen(Block& block) {
    if (!block.bytes.codes) return;
    if (!block.bytes.rows) {
      block.bytes.rows = pool_of(block.name.kv_head).take();
      for (uint32_t head = 0; head < n_heads_of(block); ++head) expand_head(block, head, 0);
    }
    block.bytes.codes = nullptr;
  }

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out = table_.lease(key, handle, write);
    point(out, key, handle);
    return out;
  }
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
    const Block& block = *table_.block(handle);
    const sdk::KvLayout& layout = layout_of(block);
    const uint64_t skip = table_.first_head(key, handle);
    lease.k = block.bytes.rows + skip * layout.format.k_head_stride;
    lease.v = block.bytes.rows + layout.k_bytes + skip * layout.format.v_head_stride;
    lease.format = block.bytes.codes ? 1 : 0;
  }

  // A kv head of a block is one task. Allocates nothing.
  void expand_all() {
    host_.parallel_for(to_expand_.size() * n_heads_, 1,
                       [&](uint64_t begin, uint64_t end, uint32_t worker) {
                         for (uint64_t i = begin; i < end; ++i) {
                           const Work& work = to_expand_[i / n_heads_];
                           const Block& block = *table_.block(work.handle);
                           const auto head = static_cast<uint32_t>(i % n_heads_);
                           if (head >= n_heads_of(block)) continue;
                           if (work.is_new) quantise_head(block, head, worker);
                           expand_head(block, head, worker);
                         }
                       });
  }
  uint16_t* k_rows(const Block& block, uint32_t head) const {
    return reinterpret_cast<uint16_t*>(block.bytes.rows +
                                       head * layout_of(block).format.k_head_stride);
  }
  uint16_t* v_rows(const Block& block, uint32_t head) const {
    const sdk::KvLayout& layout = layout_of(block);
    return reinterpret_cast<uint16_t*>(block.bytes.rows + layout.k_bytes +
                                       head * layout.format.v_head_stride);
  }
  void quantise_head(const Block& block, uint32_t head, uint32_t worker) {
    std::byte* const codes = block.bytes.codes.get() + head * head_bytes();
    kivi::quantise(k_, k_rows(block, head), k_.dim, codes, scratch_[worker]);
    kivi::quantise(v_, v_rows(block, head), v_.dim, codes + k_.bytes(), scratch_[worker]);
  }
  void expand_head(const Block& block, uint32_t head, uint32_t worker) {
    const std::byte* const codes = block.bytes.codes.get() + head * head_bytes();
    kivi::expand(k_, codes, k_rows(block, head), k_.dim, scratch_[worker]);
    kivi::expand(v_, codes + k_.bytes(), v_rows(block, head), v_.dim, scratch_[worker]);
  }

  sdk::Host host_;
  uint32_t k_bits_, v_bits_, group_size_;
  uint32_t n_heads_ = 0;
  RowShape k_, v_;  // of one kv head
  sdk::KvLayout all_heads_, one_head_;
  std::vector<RowScratch> scratch_;  // by worker

  std::mutex mutex_;  // drop() may come from any thread
  std::optional<RowPool> all_rows_, one_rows_;
  Table table_{"kivi"};
  std::vector<Work> to_expand_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.kivi", "0.1.0", Kivi)
