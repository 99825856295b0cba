// Storage in main memory: every block stays where it was created until it is dropped.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugins/shared/block_table.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/shared/placement.h"
#include "plugins/storage/dram/arena.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::bool_option({.key = "huge_pages", .help = "ask for transparent huge pages"}, true),
    sdk::bytes_option({.key = "max_bytes",
                       .help = "most memory for blocks; 0 = what the system gives",
                       .unit = "bytes"},
                      0),
    sdk::option(KVASIR_OPTION_PATH,
                {.key = "map_folder",
                 .help = "folder of a file that blocks are mapped from: the system brings their "
                         "pages in when they are touched and takes them away when memory is short; "
                         "default: no file",
                 .flags = KVASIR_OPTION_OPTIONAL},
                {KVASIR_OPTION_PATH, 0, 0, 0.0, "", nullptr}),
};

// Where heads belong on different memory nodes, a block has a part for each in an area of its own.
// Areas of a mapping are equally far apart: still one stride from head to head.
class Dram {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_STORAGE,
       .id = "kvasir.dram",
       .version = "0.1.0",
       .name = "DRAM",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Keeps every block in main memory, in f32, f16, bf16, q8_0, q4_0 or fp8_e4m3.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_STABLE_LEASES,
       .dtypes = sdk::kElementTypes});

  Dram(const sdk::Host& host, const sdk::Options& options)
      : host_(host),
        types_(options),
        huge_pages_(options.boolean("huge_pages")),
        max_bytes_(options.bytes("max_bytes")),
        map_folder_(options.delivered("map_folder") ? options.path("map_folder") : "") {}

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    const uint32_t n_parts = n_areas(sdk::HeadPlacement(host_, geometry.n_kv_heads), geometry);
    out.n_tiers = map_folder_.empty() ? 1 : 2;
    out.block_bytes = sdk::kv_layout(geometry, types_, geometry.n_kv_heads, n_parts).block_bytes();
    if (!map_folder_.empty()) out.resident_bytes = 1;  // what stays is the system's business
    out.overhead_bytes = sdk::blocks_per_sequence(geometry) * geometry.n_layers *
                             geometry.max_sequences *
                             sdk::BlockTable<std::byte*>::bytes_per_block() +
                         (n_parts - 1) * dram::kHugePage;  // the last page of each further area
  }

  void bind(const kvasir_geometry& geometry) {
    table_.bind(geometry);
    const uint32_t n_heads = geometry.n_kv_heads;
    const sdk::HeadPlacement placement(host_, n_heads);
    std::vector<dram::Arena::Nodes> areas(n_areas(placement, geometry));
    for (uint32_t area = 0; area < areas.size(); ++area) areas[area] = placement.nodes_of(area);
    const auto n_parts = static_cast<uint32_t>(areas.size());
    several_nodes_ = placement.n_nodes() > 1;
    all_heads_.emplace(sdk::kv_layout(geometry, types_, n_heads, n_parts), areas, huge_pages_,
                       map_folder_);
    one_head_.clear();
    for (const dram::Arena::Nodes& nodes : areas) {
      one_head_.emplace_back(sdk::kv_layout(geometry, types_, 1),
                             std::vector<dram::Arena::Nodes>{nodes}, huge_pages_, map_folder_);
    }
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("dram", all_heads_->layout.format, out, capacity, n_formats);
  }

  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const std::lock_guard lock(mutex_);
    sdk::acquire_all(*this, "dram", keys, mode, out);
  }

  void release(std::span<const uint64_t> leases) {
    const std::lock_guard lock(mutex_);
    sdk::release_all(*this, host_, leases);
  }

  // Nothing is quantised or moved; equal blocks are kept once.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    const std::lock_guard lock(mutex_);
    const auto given_up = table_.seal(keys, leases, [](uint64_t) { return true; });
    if (given_up.empty()) return;
    for (uint64_t i = 0; i < keys.size(); ++i) point(leases[i], keys[i], leases[i].handle);
    for (const uint64_t handle : given_up) remove(handle);
  }

  // There is no other tier: UNREF and FORGET both free the bytes.
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    const std::lock_guard lock(mutex_);
    sdk::drop_all(*this, table_, "dram", keys, mode);
  }

  // What acquire_all() is made of, under the lock.
  kvasir_lease read_lease(const kvasir_block_key& key) {
    const uint64_t handle = table_.find("acquire", key, true);
    if (handle == 0) return table_.no_lease(key, KVASIR_LEASE_FAILED);
    return lease(key, handle, false);
  }
  kvasir_lease write_lease(const kvasir_block_key& key, std::vector<uint64_t>& created) {
    uint64_t handle = table_.find_for_writing(key);
    if (handle == 0) created.push_back(handle = create(key));
    return lease(key, handle, true);
  }
  bool give_back(uint64_t lease) noexcept { return table_.end_lease(lease) != 0; }
  void remove(uint64_t handle) noexcept {
    const auto& block = *table_.block(handle);
    SizeClass& sizes = size_class(block.name.kv_head);
    sizes.arena.free(block.bytes);
    used_bytes_ -= sizes.layout.block_bytes();
    table_.remove(handle);
  }

 private:
  struct SizeClass {
    sdk::KvLayout layout;
    dram::Arena arena;
    SizeClass(const sdk::KvLayout& l, std::vector<dram::Arena::Nodes> areas, bool huge_pages,
              const std::string& folder)
        : layout(l), arena(l.part_bytes(), std::move(areas), huge_pages, folder) {
      if (layout.n_parts == 1) return;
      layout.format.k_head_stride = layout.format.v_head_stride = arena.area_bytes();
    }
  };

  // One per kv head where the workers that read them are on several nodes, else one for all.
  static uint32_t n_areas(const sdk::HeadPlacement& placement, const kvasir_geometry& geometry) {
    return placement.n_nodes() > 1 ? geometry.n_kv_heads : 1;
  }

  SizeClass& size_class(uint32_t kv_head) {
    if (kv_head == KVASIR_ALL_HEADS) return *all_heads_;
    return one_head_[std::min<size_t>(kv_head, one_head_.size() - 1)];
  }

  uint64_t create(const kvasir_block_key& key) {
    SizeClass& sizes = size_class(key.kv_head);
    const uint64_t bytes = sizes.layout.block_bytes();
    if (max_bytes_ != 0 && used_bytes_ + bytes > max_bytes_) {
      throw sdk::Error(KVASIR_ERR_OUT_OF_MEMORY,
                       table_.where("acquire", key) + std::to_string(used_bytes_) +
                           " bytes are in use and max_bytes = " + std::to_string(max_bytes_) +
                           " leaves no space for " + std::to_string(bytes) + " more");
    }
    std::byte* data = sizes.arena.allocate();
    uint64_t handle = 0;
    try {
      handle = table_.add(key, data);
    } catch (...) {
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
    kvasir_lease out = table_.lease(key, handle, write);
    point(out, key, handle);
    return out;
  }
  void point(kvasir_lease& lease, const kvasir_block_key& key, uint64_t handle) {
    const auto& block = *table_.block(handle);
    const sdk::KvLayout& layout = size_class(block.name.kv_head).layout;
    const uint64_t skip = table_.first_head(key, handle);
    lease.k = block.bytes + skip * layout.format.k_head_stride;
    lease.v = block.bytes + layout.k_bytes + skip * layout.format.v_head_stride;
  }

  sdk::Host host_;
  sdk::KvTypes types_;
  bool huge_pages_;
  uint64_t max_bytes_;
  std::string map_folder_;

  std::mutex mutex_;  // drop() may come from any thread
  std::optional<SizeClass> all_heads_;
  std::deque<SizeClass> one_head_;  // one, or by kv head
  sdk::BlockTable<std::byte*> table_{"dram"};
  uint64_t used_bytes_ = 0;
  bool several_nodes_ = false;  // else a refused binding changes nothing
  bool refusal_told_ = false;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.dram", "0.1.0", Dram)
