// Storage on the test device; its leases end with the step. Probe: 0 = where its memory begins,
// 1 = bytes, 2 = blocks, 3 = allocations, 4 = tokens of one head that copy_tokens() moved.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/device_memory.h>

#include <array>
#include <cstring>
#include <optional>

#include "tests/plugins/device/device_blocks.h"
#include "tests/plugins/device/device_copy.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr const char* kTypes[] = {"f32", "f16", "q8_0"};
constexpr uint32_t kDtypes[] = {KVASIR_DTYPE_F32, KVASIR_DTYPE_F16, KVASIR_DTYPE_Q8_0};
constexpr const char* kWhere[] = {"device", "host", "claimed"};
constexpr kvasir_option_schema kOptions[] = {
    sdk::enum_option({.key = "type", .help = "of K and V"}, kTypes, 0),
    sdk::enum_option({.key = "blocks", .help = "where they lie; claimed: a lie"}, kWhere, 0),
    sdk::bool_option({.key = "checks", .help = "says whether numbers are finite"}, true)};

class DeviceStorage {
 public:
  static constexpr kvasir_desc kDesc =
      fake_desc(KVASIR_KIND_STORAGE, "kvasir.test.device_storage", kOptions,
                {.dtypes = KVASIR_DTYPE_BIT(KVASIR_DTYPE_F32) | KVASIR_DTYPE_BIT(KVASIR_DTYPE_F16) |
                           KVASIR_DTYPE_BIT(KVASIR_DTYPE_Q8_0)});

  DeviceStorage(const sdk::Host&, const sdk::Options& options)
      : dtype_(kDtypes[options.choice("type")]),
        where_(options.choice("blocks")),
        checks_(options.boolean("checks")) {}

  const void* get_extension(const char* id) {
    if (std::string_view(id) == KVASIR_EXT_DEVICE_MEMORY) return &device_memory_table(checks_);
    return probe_extension<DeviceStorage>(id);
  }
  uint64_t probe(uint32_t item) const {
    const DeviceMemory& memory = DeviceMemory::instance();
    return std::array{memory.begin(), memory.size(), blocks_->size(), memory.n_allocated(),
                      n_copied_}
        .at(item);
  }

  void plan(const kvasir_geometry& g, kvasir_storage_plan& out) const {
    out.n_tiers = 1;
    out.block_bytes = DeviceBlocks(g, dtype_, where_ == 1).block_bytes(g.n_kv_heads);
  }
  void bind(const kvasir_geometry& geometry) { blocks_.emplace(geometry, dtype_, where_ == 1); }
  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n) const {
    n = 1;
    if (capacity < 1) throw sdk::Error(KVASIR_ERR_CAPACITY, "one format");
    out[0] = blocks_->format(dtype_, where_ != 0 ? KVASIR_MEM_HOST : KVASIR_MEM_DEVICE);
  }
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    for (uint64_t i = 0; i < keys.size(); ++i)
      out[i] = blocks_->lease(keys[i], mode == KVASIR_ACQUIRE_WRITE);
  }
  void release(std::span<const uint64_t> leases) {
    for (const uint64_t id : leases) blocks_->release(id);
  }
  void seal(const sdk::BlockKeys&, const sdk::Leases&) {}
  void drop(const sdk::BlockKeys& keys, uint32_t) {
    for (const kvasir_block_key& key : keys) blocks_->drop(key);
  }

  void write_tokens(const sdk::TokenSpans& spans, const kvasir_view& k, const kvasir_view& v) {
    const DeviceMemory::Access access;
    write_spans(*blocks_, spans, k, v);
  }
  void copy_tokens(const sdk::TokenCopies& copies) {
    const DeviceMemory::Access access;
    n_copied_ += copy_between(*blocks_, copies);
  }
  void save_tokens(const sdk::TokenSpans& spans, std::span<std::byte> bytes) {
    const DeviceMemory::Access access;
    for_each_vector(*blocks_, spans, bytes.size(), [&](std::byte* vector, uint64_t at, uint64_t n) {
      std::memcpy(bytes.data() + at, vector, n);
    });
  }
  void load_tokens(const sdk::TokenSpans& spans, std::span<const std::byte> bytes) {
    const DeviceMemory::Access access;
    for_each_vector(*blocks_, spans, bytes.size(), [&](std::byte* vector, uint64_t at, uint64_t n) {
      std::memcpy(vector, bytes.data() + at, n);
    });
  }

 private:
  uint32_t dtype_, where_;
  bool checks_;
  std::optional<DeviceBlocks> blocks_;
  uint64_t n_copied_ = 0;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.device_storage", "0.1.0", DeviceStorage)
