// Storage in tiers, the first of them in the memory of an NVIDIA GPU: blocks that steps use lie
// there, kvasir.tiered below has all of them in main memory and in files. What a step is going to
// need travels on a stream of its own while the layer before computes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/shared/device_memory.h"
#include "plugins/storage/tiered/device_blocks.h"

namespace {
using namespace kvasir;
using tiered::DeviceBlocks;
using tiered::Request;

class GpuTiered {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_STORAGE,
       .id = "kvasir.gpu_tiered",
       .version = "0.1.0",
       .name = "GPU memory in tiers",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Keeps the blocks used last in GPU memory, more in main memory, all in files.",
       .options = tiered::kGpuOptions,
       .caps = KVASIR_CAP_OWN_THREADS,
       .provides = KVASIR_PROVIDE_FETCH,
       .dtypes = sdk::kElementTypes,
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  GpuTiered(const sdk::Host& host, const sdk::Options& options)
      : reads_ahead_(options.boolean("read_ahead")),
        below_(host, options),
        blocks_(host, options, below_),
        carrier_(blocks_, host.completion()) {}

  void validate(const kvasir_geometry& geometry) const {
    sdk::check_device_blocks(geometry, blocks_.types());
  }

  // Blocks lie on the device; of main memory the fixed part is counted, which is all of it: what
  // `tiered` keeps and what is on its way.
  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    below_.plan(geometry, out);
    ++out.n_tiers;
    out.overhead_bytes +=
        out.resident_bytes + std::max(DeviceBlocks::kStagingBytes, out.block_bytes);
    out.overhead_bytes += sdk::blocks_per_sequence(geometry) * geometry.max_sequences *
                          geometry.n_layers * DeviceBlocks::table_bytes_per_block();
    out.resident_bytes = blocks_.resident_bytes(geometry);
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    below_.bind(geometry);
    blocks_.bind(geometry);
    const sdk::KvLayout& layout = blocks_.frames().layout(KVASIR_ALL_HEADS);
    device_.emplace(DeviceBlocks::kName, geometry, layout);
    most_unsaved_ = tiered::kMostUnsavedBytes / layout.block_bytes();
    carrier_.start();  // here, where its thread inherits no single core
  }

  const void* get_extension(const char* id) const {
    if (std::string_view(id) == KVASIR_EXT_DEVICE_MEMORY)
      return sdk::device_memory_table<GpuTiered>();
    if (std::string_view(id) == KVASIR_EXT_BLOCK_HEAT) return sdk::block_heat_table<GpuTiered>();
    return sdk::tier_counters_if_asked<GpuTiered>(id);
  }
  sdk::DeviceMemory& device_memory() { return *device_; }
  std::vector<kvasir_tier_count> tiers() { return blocks_.tiers(); }
  uint32_t wants_heat() const { return below_.wants_heat(); }
  void heat(const sdk::BlockKeys& keys, std::span<const float> values) {
    blocks_.heat(keys, values);
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format(DeviceBlocks::kName, blocks_.frames().format(), out, capacity, n_formats);
  }

  // The device may be full of what has not gone down yet, or came for others.
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    try {
      acquire_now(keys, mode, out);
    } catch (const sdk::Error& e) {
      if (e.status() != KVASIR_ERR_OUT_OF_MEMORY) throw;
      carrier_.wait_for_saves(0);
      blocks_.let_go_of_others(keys);
      acquire_now(keys, mode, out);
    }
  }
  void release(std::span<const uint64_t> leases) { blocks_.release(leases); }
  // A full block goes down, and may then leave the device.
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    carrier_.save(blocks_.seal(keys, leases));
    carrier_.wait_for_saves(most_unsaved_);
    below_.wait_for_saves();
  }
  void drop(const sdk::BlockKeys& keys, uint32_t mode) { blocks_.drop(keys, mode); }

  void prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint& hint, uint64_t ticket,
                uint32_t& accepted) {
    if (keys.size() == 0 || (hint.priority == 0 && !reads_ahead_)) return;
    carrier_.load(ticket, blocks_.requests_of(keys), hint.priority != 0);
    accepted = static_cast<uint32_t>(keys.size());
  }
  void cancel(uint64_t ticket) { carrier_.cancel(ticket); }
  void drain(uint64_t deadline_ms) { carrier_.drain(deadline_ms); }

  void write_tokens(const sdk::TokenSpans& spans, const kvasir_view& k, const kvasir_view& v) {
    blocks_.check(spans);
    device_->write_tokens(spans, k, v);
  }
  void copy_tokens(const sdk::TokenCopies& copies) {
    blocks_.check(copies);
    device_->copy_tokens(copies);
  }
  void save_tokens(const sdk::TokenSpans& spans, std::span<std::byte> bytes) {
    blocks_.check(spans);
    device_->save_tokens(spans, bytes);
  }
  void load_tokens(const sdk::TokenSpans& spans, std::span<const std::byte> bytes) {
    blocks_.check(spans);
    device_->load_tokens(spans, bytes);
  }

 private:
  void acquire_now(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    std::vector<size_t> key;  // by what came
    std::vector<Request> came;
    if (mode == KVASIR_ACQUIRE_FETCH || mode == KVASIR_ACQUIRE_WRITE) {
      std::vector<Request> missing = blocks_.missing(keys, mode == KVASIR_ACQUIRE_FETCH, key);
      if (!missing.empty()) came = carrier_.load_now(std::move(missing));
    }
    for (const Request& request : came)
      if (!request.why.empty()) throw sdk::Error(request.status, request.why);
    blocks_.acquire(keys, mode == KVASIR_ACQUIRE_FETCH ? KVASIR_ACQUIRE_READ : mode, out);
    for (size_t i = 0; i < came.size(); ++i) out[key[i]].tier = 1 + came[i].tier;
  }

  bool reads_ahead_;
  size_t most_unsaved_ = 0;  // full blocks that have not gone down
  tiered::Tiered below_;
  DeviceBlocks blocks_;
  std::optional<sdk::DeviceMemory> device_;
  tiered::Carrier carrier_;  // ends first: its thread uses the others
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.gpu_tiered", "0.1.0", GpuTiered)
