// Storage in main memory: every block stays where it was created until it is dropped.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plugins/sdk/placement.h"
#include "plugins/sdk/plugin.h"
#include "plugins/storage/dram/arena.h"
#include "plugins/storage/dram/block_name.h"
#include "plugins/storage/dram/slot_map.h"

namespace {
using namespace kvasir;
using dram::BlockName;
using dram::name_of;
using dram::where;

constexpr const char* kTypeNames[] = {"f32", "f16", "bf16"};
constexpr uint32_t kTypes[] = {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16, KVASIR_DTYPE_BF16};
constexpr int64_t kDefaultType = 1;

constexpr std::array kOptions = {
    sdk::enum_option({.key = "type_k", .help = "element type of stored keys"}, kTypeNames,
                     kDefaultType),
    sdk::enum_option({.key = "type_v", .help = "element type of stored values"}, kTypeNames,
                     kDefaultType),
    sdk::bool_option({.key = "huge_pages", .help = "ask for transparent huge pages"}, true),
    sdk::bytes_option({.key = "max_bytes",
                       .help = "most memory for blocks; 0 = what the system gives",
                       .unit = "bytes"},
                      0),
};

uint64_t element_bytes(uint32_t dtype) { return dtype == KVASIR_DTYPE_F32 ? 4 : 2; }
uint64_t round_up_64(uint64_t n) { return (n + 63) / 64 * 64; }

struct Block {
  std::byte* data = nullptr;
  BlockName name{};
  uint32_t n_leases = 0;
  bool written = false;  // a WRITE lease is out
};

struct Lease {
  uint64_t block = 0;
  bool write = false;
};

// [kv_head][token][head_dim] of K, then [kv_head][token][v_dim] of V, each a multiple of 64 bytes:
// of all heads in one part, or of each head in a part of its own, where heads belong on different
// memory nodes. Parts are as far apart as the areas of a mapping: still one stride from head to
// head.
struct Layout {
  kvasir_kv_format format{};
  uint64_t n_parts = 1;
  uint64_t k_bytes = 0;  // of a part
  uint64_t v_bytes = 0;
  uint64_t part_bytes() const { return k_bytes + v_bytes; }
  uint64_t block_bytes() const { return n_parts * part_bytes(); }
};

class Dram {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_STORAGE,
       .id = "kvasir.dram",
       .version = "0.1.0",
       .name = "DRAM",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Keeps every block in main memory, in f32, f16 or bf16.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_STABLE_LEASES,
       .dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
                 KVASIR_DTYPE_BIT(KVASIR_DTYPE_BF16)});

  Dram(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        dtype_k_(kTypes[options.choice("type_k")]),
        dtype_v_(kTypes[options.choice("type_v")]),
        huge_pages_(options.boolean("huge_pages")),
        max_bytes_(options.bytes("max_bytes")) {}

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    const uint64_t blocks_per_sequence =
        (uint64_t{geometry.max_context} + geometry.block_size - 1) / geometry.block_size;
    const uint32_t n_parts = n_areas(sdk::HeadPlacement(host_, geometry.n_kv_heads), geometry);
    out.n_tiers = 1;
    out.block_bytes = layout(geometry, geometry.n_kv_heads, n_parts).block_bytes();
    out.overhead_bytes =
        blocks_per_sequence * geometry.n_layers * geometry.max_sequences * kTableBytes +
        (n_parts - 1) * dram::kHugePage;  // the last page of each further area
  }

  void bind(const kvasir_geometry& geometry) {
    n_layers_ = geometry.n_layers;
    n_kv_heads_ = geometry.n_kv_heads;
    block_size_ = geometry.block_size;
    const sdk::HeadPlacement placement(host_, n_kv_heads_);
    std::vector<dram::Arena::Nodes> areas(n_areas(placement, geometry));
    for (uint32_t area = 0; area < areas.size(); ++area) areas[area] = placement.nodes_of(area);
    const auto n_parts = static_cast<uint32_t>(areas.size());
    several_nodes_ = placement.n_nodes() > 1;
    all_heads_.emplace(layout(geometry, n_kv_heads_, n_parts), areas, huge_pages_);
    one_head_.clear();
    for (const dram::Arena::Nodes& nodes : areas) {
      one_head_.emplace_back(layout(geometry, 1, 1), std::vector<dram::Arena::Nodes>{nodes},
                             huge_pages_);
    }
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    n_formats = 1;
    if (capacity < 1) throw sdk::Error(KVASIR_ERR_CAPACITY, "dram: formats needs room for 1");
    out[0] = all_heads_->layout.format;
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    if (mode != KVASIR_ACQUIRE_READ && mode != KVASIR_ACQUIRE_WRITE) {
      sdk::fail_invalid("dram: acquire: mode " + std::to_string(mode) + " is not READ or WRITE");
    }
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> leased, created;
    leased.reserve(keys.size());
    if (mode == KVASIR_ACQUIRE_WRITE) created.reserve(keys.size());
    try {
      for (uint64_t i = 0; i < keys.size(); ++i) {
        out[i] = mode == KVASIR_ACQUIRE_WRITE ? write_lease(keys[i], created) : read_lease(keys[i]);
        leased.push_back(out[i].lease);
      }
    } catch (...) {  // all or nothing
      for (const uint64_t lease : leased) end_lease(lease);
      for (const uint64_t block : created) remove(block);
      throw;
    }
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    for (const uint64_t lease : leases) {
      if (lease != 0 && !end_lease(lease)) {
        host_.log(KVASIR_LOG_WARN,
                  "release: lease " + std::to_string(lease) + " is not out; released twice?");
      }
    }
  }

  // Nothing is quantised or moved: the block takes its new name, the lease becomes one for reading.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    const std::lock_guard lock(mutex_);
    for (uint64_t i = 0; i < keys.size(); ++i) check_seal(keys[i], leases[i]);
    for (uint64_t i = 0; i < keys.size(); ++i) {
      Lease& lease = *leases_.find(leases[i].lease);
      rename(lease.block, name_of(keys[i]));
      blocks_.find(lease.block)->written = false;
      lease.write = false;
      leases[i].handle = lease.block;
    }
  }

  // There is no other tier: UNREF and FORGET both free the bytes.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    if (mode != KVASIR_DROP_UNREF && mode != KVASIR_DROP_FORGET) {
      sdk::fail_invalid("dram: drop: mode " + std::to_string(mode) + " is not UNREF or FORGET");
    }
    const std::lock_guard lock(mutex_);
    for (const kvasir_block_key& key : keys) check_drop(key);
    for (const kvasir_block_key& key : keys) drop_one(key);
  }

 private:
  struct SizeClass {
    Layout layout;
    dram::Arena arena;
    SizeClass(const Layout& l, std::vector<dram::Arena::Nodes> areas, bool huge_pages)
        : layout(l), arena(l.part_bytes(), std::move(areas), huge_pages) {
      if (layout.n_parts == 1) return;
      layout.format.k_head_stride = layout.format.v_head_stride = arena.area_bytes();
    }
  };
  // A block, a lease on it, and its entry in the index (node, bucket, malloc's header).
  static constexpr uint64_t kTableBytes = dram::SlotMap<Block>::bytes_per_value() +
                                          dram::SlotMap<Lease>::bytes_per_value() +
                                          sizeof(std::pair<BlockName, uint64_t>) + 40;

  // One per kv head where the workers that read them are on several nodes, else one for all.
  static uint32_t n_areas(const sdk::HeadPlacement& placement, const kvasir_geometry& geometry) {
    return placement.n_nodes() > 1 ? geometry.n_kv_heads : 1;
  }

  Layout layout(const kvasir_geometry& geometry, uint32_t n_heads, uint32_t n_parts) const {
    Layout out;
    out.n_parts = n_parts;
    kvasir_kv_format& format = out.format;
    format.struct_size = sizeof format;
    format.dtype_k = dtype_k_;
    format.dtype_v = dtype_v_;
    format.k_token_stride = geometry.head_dim * element_bytes(dtype_k_);
    format.v_token_stride = geometry.v_dim * element_bytes(dtype_v_);
    format.k_head_stride = geometry.block_size * format.k_token_stride;
    format.v_head_stride = geometry.block_size * format.v_token_stride;
    out.k_bytes = round_up_64(n_heads / n_parts * format.k_head_stride);
    out.v_bytes = round_up_64(n_heads / n_parts * format.v_head_stride);
    return out;
  }

  SizeClass& size_class(uint32_t kv_head) {
    if (kv_head == KVASIR_ALL_HEADS) return *all_heads_;
    return one_head_[std::min<size_t>(kv_head, one_head_.size() - 1)];
  }

  void check_key(const char* function, const kvasir_block_key& key) const {
    if (key.layer >= n_layers_ || key.n_tokens > block_size_ ||
        (key.kv_head != KVASIR_ALL_HEADS && key.kv_head >= n_kv_heads_)) {
      sdk::fail_invalid(where(function, key) + "the run has " + std::to_string(n_layers_) +
                        " layers, " + std::to_string(n_kv_heads_) + " kv heads and blocks of " +
                        std::to_string(block_size_) +
                        " tokens (key: " + std::to_string(key.n_tokens) + ")");
    }
  }

  // The block's handle, 0 when there is none of that name. A handle must fit its key. With `slices`
  // a key of one head also finds the block of all heads.
  uint64_t find(const char* function, const kvasir_block_key& key, bool slices) {
    check_key(function, key);
    if (key.handle == 0) {
      auto found = index_.find(name_of(key));
      if (found == index_.end() && slices) found = index_.find(dram::whole_of(key));
      return found == index_.end() ? 0 : found->second;
    }
    const Block* block = blocks_.find(key.handle);
    const bool fits =
        block && (block->name == name_of(key) || (slices && block->name == dram::whole_of(key)));
    if (!fits) {
      sdk::fail_invalid(
          where(function, key) + "handle " + std::to_string(key.handle) +
          (block ? " belongs to a block with another key" : " names no block; dropped before?"));
    }
    return key.handle;
  }

  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = find("acquire", key, true);
    if (handle != 0) return lease(key, handle, false);
    kvasir_lease out{};
    out.kv_head = key.kv_head;
    out.state = KVASIR_LEASE_FAILED;
    return out;
  }

  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = find("acquire", key, false);
    if (handle == 0) {
      handle = create(key);
      created.push_back(handle);
    } else if (blocks_.find(handle)->written) {
      sdk::fail_invalid(where("acquire", key) + "a WRITE lease is out already");
    }
    return lease(key, handle, true);
  }

  uint64_t create(const kvasir_block_key& key) {
    SizeClass& sizes = size_class(key.kv_head);
    const uint64_t bytes = sizes.layout.block_bytes();
    if (max_bytes_ != 0 && used_bytes_ + bytes > max_bytes_) {
      throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY,
                       where("acquire", key) + std::to_string(used_bytes_) +
                           " bytes are in use and max_bytes = " + std::to_string(max_bytes_) +
                           " leaves no room for " + std::to_string(bytes) + " more");
    }
    std::byte* data = sizes.arena.allocate();
    uint64_t handle = 0;
    try {
      handle = blocks_.add({data, name_of(key), 0, false});
      index_.emplace(name_of(key), handle);
    } catch (...) {
      if (handle != 0) blocks_.remove(handle);
      sizes.arena.free(data);
      throw;
    }
    used_bytes_ += bytes;
    if (several_nodes_) tell_refusal(sizes.arena.refusal());
    return handle;
  }

  void tell_refusal(const std::string& refusal) {
    if (refusal.empty() || refusal_told_) return;
    refusal_told_ = true;
    host_.log(KVASIR_LOG_WARN, "blocks are not all on the memory node that reads them (" + refusal +
                                   "): allow mbind to this process, in a container CAP_SYS_NICE");
  }

  kvasir_lease lease(const kvasir_block_key& key, uint64_t handle, bool write) {
    kvasir_lease out{};
    out.lease = leases_.add({handle, write});
    Block& block = *blocks_.find(handle);
    ++block.n_leases;
    block.written |= write;
    out.handle = handle;
    const Layout& layout = size_class(block.name.kv_head).layout;
    const uint64_t skip = block.name.kv_head == key.kv_head ? 0 : key.kv_head;  // heads of a slice
    out.k = block.data + skip * layout.format.k_head_stride;
    out.v = block.data + layout.k_bytes + skip * layout.format.v_head_stride;
    out.n_tokens = key.n_tokens;
    out.kv_head = key.kv_head;
    out.state = KVASIR_LEASE_RESIDENT;
    return out;
  }

  bool end_lease(uint64_t id) noexcept {
    const Lease* found = leases_.find(id);
    if (!found) return false;
    Block& block = *blocks_.find(found->block);  // a leased block is not dropped
    --block.n_leases;
    if (found->write) block.written = false;
    leases_.remove(id);
    return true;
  }

  void check_seal(const kvasir_block_key& key, const kvasir_lease& out) {
    check_key("seal", key);
    const Lease* found = leases_.find(out.lease);
    if (!found || !found->write) {
      sdk::fail_invalid(where("seal", key) + "lease " + std::to_string(out.lease) +
                        " is not a WRITE lease");
    }
    const BlockName& named = blocks_.find(found->block)->name;
    if (named.layer != key.layer || named.block != key.block || named.kv_head != key.kv_head) {
      sdk::fail_invalid(where("seal", key) + "the lease is on layer " +
                        std::to_string(named.layer) + ", block " + std::to_string(named.block));
    }
  }

  // Handle of a block that may be dropped.
  uint64_t check_drop(const kvasir_block_key& key) {
    const uint64_t handle = find("drop", key, true);
    if (handle == 0) sdk::fail_invalid(where("drop", key) + "no such block; dropped before?");
    const Block& block = *blocks_.find(handle);
    if (block.n_leases != 0 && block.name.kv_head == key.kv_head) {
      sdk::fail_invalid(where("drop", key) + std::to_string(block.n_leases) +
                        " lease(s) are out; release them first");
    }
    return handle;
  }

  // A slice takes no bytes with it: the block goes with the last of its heads.
  void drop_one(const kvasir_block_key& key) {
    const uint64_t handle = check_drop(key);
    const Block& block = *blocks_.find(handle);
    if (block.name.kv_head != key.kv_head) {
      std::vector<bool>& lost = lost_heads_[handle];
      lost.resize(n_kv_heads_);
      if (lost[key.kv_head]) {
        sdk::fail_invalid(where("drop", key) + "this head of the block was dropped before");
      }
      if (block.n_leases != 0 && std::count(lost.begin(), lost.end(), false) == 1) {
        sdk::fail_invalid(where("drop", key) + "it is the block's last head, and " +
                          std::to_string(block.n_leases) + " lease(s) are out");
      }
      lost[key.kv_head] = true;
      if (std::count(lost.begin(), lost.end(), false) != 0) return;
    }
    remove(handle);
  }

  // Two sealed blocks may bear one name (equal content, sealed twice): look-up finds either.
  void forget_name(const BlockName& name, uint64_t handle) noexcept {
    const auto [begin, end] = index_.equal_range(name);
    for (auto it = begin; it != end; ++it) {
      if (it->second == handle) {
        index_.erase(it);
        return;
      }
    }
  }

  void rename(uint64_t handle, const BlockName& name) {
    Block& block = *blocks_.find(handle);
    if (block.name == name) return;
    index_.emplace(name, handle);
    forget_name(block.name, handle);
    block.name = name;
  }

  void remove(uint64_t handle) noexcept {
    const Block block = *blocks_.find(handle);
    SizeClass& sizes = size_class(block.name.kv_head);
    forget_name(block.name, handle);
    sizes.arena.free(block.data);
    used_bytes_ -= sizes.layout.block_bytes();
    lost_heads_.erase(handle);
    blocks_.remove(handle);
  }

  sdk::Host host_;
  uint32_t dtype_k_;
  uint32_t dtype_v_;
  bool huge_pages_;
  uint64_t max_bytes_;

  uint32_t n_layers_ = 0;
  uint32_t n_kv_heads_ = 0;
  uint32_t block_size_ = 0;

  std::mutex mutex_;  // drop() may come from any thread
  std::optional<SizeClass> all_heads_;
  std::deque<SizeClass> one_head_;  // one, or by kv head
  dram::SlotMap<Block> blocks_;
  dram::SlotMap<Lease> leases_;
  std::unordered_multimap<BlockName, uint64_t, dram::BlockNameHash> index_;
  std::unordered_map<uint64_t, std::vector<bool>> lost_heads_;  // of blocks with dropped slices
  uint64_t used_bytes_ = 0;
  bool several_nodes_ = false;  // else a refused binding changes nothing
  bool refusal_told_ = false;
};

}  // namespace

KVASIR_PLUGIN_NOTE(KVASIR_KIND_BIT(KVASIR_KIND_STORAGE), "kvasir.dram\0", "0.1.0");

kvasir_status kvasir_plugin_entry(const kvasir_host* host, kvasir_request* request,
                                  kvasir_err* err) noexcept {
  return sdk::entry<Dram>(host, request, err);
}
