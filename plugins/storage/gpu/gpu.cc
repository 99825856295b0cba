// Storage in the memory of an NVIDIA GPU: every block stays where it was created until it is
// dropped. Tokens are written, moved, saved and loaded by kernels.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <array>
#include <mutex>
#include <optional>
#include <string_view>

#include "plugins/shared/device_frames.h"
#include "plugins/shared/device_memory.h"
#include "plugins/shared/device_work.h"
#include "plugins/shared/resident_blocks.h"

namespace {
using namespace kvasir;

constexpr std::array kOptions = {
    sdk::KvTypes::option_k(),
    sdk::KvTypes::option_v(),
    sdk::bytes_option({.key = "max_bytes",
                       .help = "most device memory for blocks; 0 = what the device gives",
                       .unit = "bytes"},
                      0),
};

class Gpu : public sdk::ResidentBlocks<Gpu> {
 public:
  static constexpr kvasir_desc kDesc = sdk::describe(
      {.kind = KVASIR_KIND_STORAGE,
       .id = "kvasir.gpu",
       .version = "0.1.0",
       .name = "GPU memory",
       .vendor = "Kvasir",
       .license = "Apache-2.0",
       .summary = "Keeps every block in GPU memory, in f32, f16, bf16, q8_0, q4_0 or fp8_e4m3.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_STABLE_LEASES,
       .dtypes = sdk::kElementTypes,
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  Gpu(const sdk::Host& host, const sdk::Options& options)
      : ResidentBlocks(host, "gpu", options.bytes("max_bytes")), types_(options) {}

  const void* get_extension(const char* id) const {
    const std::string_view asked = id;
    if (asked == KVASIR_EXT_DEVICE_MEMORY) return sdk::device_memory_table<Gpu>();
    if (asked == KVASIR_EXT_STREAM) return sdk::stream_table<Gpu>();
    if (asked == KVASIR_EXT_STREAM_USER) return sdk::stream_user_table<Gpu>();
    return nullptr;
  }

  void validate(const kvasir_geometry& geometry) const {
    sdk::check_device_blocks(geometry, types_);
  }

  void plan(const kvasir_geometry& geometry, kvasir_storage_plan& out) const {
    out.n_tiers = 1;
    out.block_bytes = sdk::kv_layout(geometry, types_, geometry.n_kv_heads).block_bytes();
    out.overhead_bytes = sdk::blocks_per_sequence(geometry) * geometry.n_layers *
                         geometry.max_sequences * sdk::BlockTable<std::byte*>::bytes_per_block();
  }

  void bind(const kvasir_geometry& geometry) {
    validate(geometry);
    table().bind(geometry);
    frames_.emplace(geometry, types_);
    device_.emplace("gpu", geometry, frames_->layout(KVASIR_ALL_HEADS));
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    sdk::write_format("gpu", frames_->format(), out, capacity, n_formats);
  }

  const sdk::KvLayout& layout_of(uint32_t kv_head) const { return frames_->layout(kv_head); }
  std::byte* allocate(const kvasir_block_key& key) {
    try {
      return frames_->allocate(key.kv_head, left_bytes());
    } catch (const cuda::Error& e) {
      throw frames_->refusal(table().where("acquire", key), e,
                             "shorten the context, use a smaller type_k and type_v, or [storage] "
                             "plugin = \"dram\"");
    }
  }
  void free(uint32_t kv_head, std::byte* data) noexcept { frames_->free(kv_head, data); }

  void write_tokens(const sdk::TokenSpans& spans, const kvasir_view& k, const kvasir_view& v) {
    check(spans);
    device_->write_tokens(spans, k, v);
  }
  void copy_tokens(const sdk::TokenCopies& copies) {
    check(copies);
    device_->copy_tokens(copies);
  }
  void save_tokens(const sdk::TokenSpans& spans, std::span<std::byte> bytes) {
    check(spans);
    device_->save_tokens(spans, bytes);
  }
  void load_tokens(const sdk::TokenSpans& spans, std::span<const std::byte> bytes) {
    check(spans);
    device_->load_tokens(spans, bytes);
  }

  sdk::DeviceMemory& device_memory() { return *device_; }
  void lend_stream(kvasir_stream_handle stream) { device_->lend(stream); }

 private:
  template <class Leases>
  void check(const Leases& leases) {
    const std::lock_guard lock(mutex());
    frames_->check("gpu", leases);
  }

  sdk::KvTypes types_;
  std::optional<sdk::DeviceFrames> frames_;
  std::optional<sdk::DeviceMemory> device_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.gpu", "0.1.0", Gpu)
