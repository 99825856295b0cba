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

#include "plugins/shared/kv_layout.h"
#include "plugins/shared/placement.h"
#include "plugins/shared/resident_blocks.h"
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

// K and V of a head lie behind each other: attention reads one after the other, and fewer jumps are
// faster. Where heads belong on different memory nodes, the parts of a block lie in areas of their
// own. Areas of a mapping are equally far apart: still one stride from head to head.
class Dram : public sdk::ResidentBlocks<Dram> {
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
      : ResidentBlocks(host, "dram", options.bytes("max_bytes")),
        types_(options),
        huge_pages_(options.boolean("huge_pages")),
        map_folder_(options.delivered("map_folder") ? options.path("map_folder") : "") {}

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    const sdk::HeadPlacement placement(host(), geometry.n_kv_heads);
    out.n_tiers = map_folder_.empty() ? 1 : 2;
    out.block_bytes = layout_of_all(geometry).block_bytes();
    if (!map_folder_.empty()) out.resident_bytes = 1;  // what stays is the system's business
    out.overhead_bytes =
        sdk::blocks_per_sequence(geometry) * geometry.n_layers * geometry.max_sequences *
            sdk::BlockTable<std::byte*>::bytes_per_block() +
        (n_areas(placement, geometry) - 1) * dram::kHugePage;  // the last page of each further area
  }

  void bind(const kvasir_geometry& geometry) {
    table().bind(geometry);
    const sdk::HeadPlacement placement(host(), geometry.n_kv_heads);
    std::vector<dram::Arena::Nodes> areas(n_areas(placement, geometry));
    for (uint32_t area = 0; area < areas.size(); ++area) areas[area] = placement.nodes_of(area);
    several_nodes_ = placement.n_nodes() > 1;
    all_heads_.emplace(layout_of_all(geometry), areas, huge_pages_, map_folder_);
    one_head_.clear();
    for (const dram::Arena::Nodes& nodes : areas) {
      one_head_.emplace_back(sdk::kv_layout(geometry, types_, 1),
                             std::vector<dram::Arena::Nodes>{nodes}, huge_pages_, map_folder_);
    }
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("dram", all_heads_->layout.format, out, capacity, n_formats);
  }

  const sdk::KvLayout& layout_of(uint32_t kv_head) { return size_class(kv_head).layout; }
  std::byte* allocate(const kvasir_block_key& key) {
    dram::Arena& arena = size_class(key.kv_head).arena;
    std::byte* data = arena.allocate();
    if (several_nodes_) tell_refusal(arena.refusal());
    return data;
  }
  void free(uint32_t kv_head, std::byte* data) noexcept { size_class(kv_head).arena.free(data); }

 private:
  struct SizeClass {
    sdk::KvLayout layout;
    dram::Arena arena;
    SizeClass(const sdk::KvLayout& l, const std::vector<dram::Arena::Nodes>& areas, bool huge_pages,
              const std::string& folder)
        : layout(l), arena(l.block_bytes() / areas.size(), areas, huge_pages, folder) {
      if (areas.size() == 1) return;
      layout.format.k_head_stride = layout.format.v_head_stride = arena.area_bytes();
    }
  };

  sdk::KvLayout layout_of_all(const kvasir_geometry& geometry) const {
    return sdk::kv_layout(geometry, types_, geometry.n_kv_heads, geometry.n_kv_heads);
  }

  // One per kv head where the workers that read them are on several nodes, else one for all.
  static uint32_t n_areas(const sdk::HeadPlacement& placement, const kvasir_geometry& geometry) {
    return placement.n_nodes() > 1 ? geometry.n_kv_heads : 1;
  }

  SizeClass& size_class(uint32_t kv_head) {
    if (kv_head == KVASIR_ALL_HEADS) return *all_heads_;
    return one_head_[std::min<size_t>(kv_head, one_head_.size() - 1)];
  }

  void tell_refusal(const std::string& refusal) {
    if (refusal.empty() || refusal_told_) return;
    refusal_told_ = true;
    sdk::tell_refusal(host(), refusal);
  }

  sdk::KvTypes types_;
  bool huge_pages_;
  std::string map_folder_;

  std::optional<SizeClass> all_heads_;
  std::deque<SizeClass> one_head_;  // one, or by kv head
  bool several_nodes_ = false;      // else a refused binding changes nothing
  bool refusal_told_ = false;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.dram", "0.1.0", Dram)
