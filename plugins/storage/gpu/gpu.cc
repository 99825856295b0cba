// Storage in the memory of an NVIDIA GPU: every block stays where it was created until it is
// dropped. Tokens are written, moved, saved and loaded by kernels.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/sdk/plugin.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/finite.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/kv_layout.h"
#include "plugins/shared/resident_blocks.h"
#include "plugins/storage/gpu/device_arena.h"
#include "plugins/storage/gpu/device_memory.h"
#include "plugins/storage/gpu/token_lists.h"

namespace {
using namespace kvasir;
using sdk::address;
using sdk::on_device;

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
       .summary = "Keeps every block in GPU memory, in f32, f16, bf16, q8_0 or q4_0.",
       .options = kOptions,
       .provides = KVASIR_PROVIDE_STABLE_LEASES,
       .dtypes = sdk::kElementTypes & ~KVASIR_DTYPE_BIT(KVASIR_DTYPE_FP8_E4M3),
       .mem_kinds_read = KVASIR_MEM_BIT(KVASIR_MEM_HOST) | KVASIR_MEM_BIT(KVASIR_MEM_DEVICE)});

  Gpu(const sdk::Host& host, const sdk::Options& options)
      : ResidentBlocks(host, "gpu", options.bytes("max_bytes")), types_(options) {}
  ~Gpu() { cuda::destroy_stream(stream_); }
  Gpu(const Gpu&) = delete;

  const void* get_extension(const char* id) const {
    return std::string_view(id) == KVASIR_EXT_DEVICE_MEMORY ? gpu::device_memory_table<Gpu>()
                                                            : nullptr;
  }

  void validate(const kvasir_geometry& geometry) const {
    sdk::kv_layout(geometry, types_, geometry.n_kv_heads);
    for (const auto& [key, dtype] : {std::pair{"type_k", types_.k}, {"type_v", types_.v}})
      if (dtype == KVASIR_DTYPE_FP8_E4M3)
        sdk::fail_invalid(std::string("gpu: ") + key +
                          " = \"fp8_e4m3\": its kernels do not write this type: use f16, bf16, "
                          "q8_0 or q4_0, or [storage] plugin = \"dram\"");
    const std::string problem = cuda::device_problem();
    if (!problem.empty()) throw sdk::Error(KVASIR_ERR_UNSUPPORTED, problem);
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
    all_heads_.emplace(sdk::kv_layout(geometry, types_, geometry.n_kv_heads));
    one_head_.emplace(sdk::kv_layout(geometry, types_, 1));
    lists_.emplace(geometry, all_heads_->layout);
    on_device([&] { stream_ = cuda::make_stream(); });
  }

  void formats(kvasir_kv_format* out, uint32_t capacity, uint32_t& n_formats) const {
    kvasir_kv_format format = all_heads_->layout.format;
    format.mem_kind = KVASIR_MEM_DEVICE;
    sdk::write_format("gpu", format, out, capacity, n_formats);
  }

  const sdk::KvLayout& layout_of(uint32_t kv_head) { return size_class(kv_head).layout; }
  std::byte* allocate(const kvasir_block_key& key) {
    try {
      return size_class(key.kv_head).arena.allocate(left_bytes());
    } catch (const cuda::Error& e) {
      const uint64_t held = all_heads_->arena.bytes() + one_head_->arena.bytes();
      throw sdk::Error(e.is_out_of_memory() ? KVASIR_ERR_OUT_OF_MEMORY : KVASIR_ERR_INTERNAL,
                       table().where("acquire", key) + e.what() + " after " +
                           std::to_string(held >> 20) +
                           " MiB for blocks: shorten the context, use a smaller type_k and "
                           "type_v, or [storage] plugin = \"dram\"");
    }
  }
  void free(uint32_t kv_head, std::byte* data) noexcept { size_class(kv_head).arena.free(data); }

  // ---- tokens ----

  void write_tokens(const sdk::TokenSpans& spans, const kvasir_view& k, const kvasir_view& v) {
    const std::lock_guard lock(mutex());
    check_leases(spans);
    lists_->written(spans, rows_);
    const uint64_t n = lists_->n_tokens(spans);
    check_values(k, n, lists_->head_dim(), "K");
    check_values(v, n, lists_->v_dim(), "V");
    sdk::run_to_end(stream_, [&] {
      const uint64_t on_k = bring(k, k_values_), on_v = bring(v, v_values_);
      cuda::write_rows(sent_rows(), on_k, on_v, stream_);
    });
  }

  void copy_tokens(const sdk::TokenCopies& copies) {
    const std::lock_guard lock(mutex());
    for (const kvasir_token_copy& copy : copies)
      for (const kvasir_lease* lease : {copy.from, copy.to}) check_lease(*lease);
    lists_->moved(copies, moves_);
    sdk::run_to_end(stream_, [&] {
      cuda::TokenMoves call = lists_->moves(moves_.size());
      call.moves = send(moves_);
      cuda::move_tokens(call, stream_);
    });
  }

  void save_tokens(const sdk::TokenSpans& spans, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex());
    list_saved(spans, bytes.size());
    sdk::run_to_end(stream_, [&] {
      const uint64_t packed = k_values_.ensure(bytes.size());
      cuda::pack_rows(sent_rows(), packed, stream_);
      cuda::copy_to_host(bytes.data(), k_values_.data(), bytes.size(), stream_);
    });
  }

  void load_tokens(const sdk::TokenSpans& spans, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex());
    list_saved(spans, bytes.size());
    sdk::run_to_end(stream_, [&] {
      const uint64_t packed = k_values_.ensure(bytes.size());
      cuda::copy_to_device(k_values_.data(), bytes.data(), bytes.size(), stream_);
      cuda::unpack_rows(sent_rows(), packed, stream_);
    });
  }

  // ---- kvasir.device-memory/1 ----

  void* device_alloc(uint64_t bytes) const {
    void* data = nullptr;
    on_device([&] { data = cuda::allocate_memory(bytes); });
    return data;
  }
  void device_free(void* data) const noexcept { cuda::free_memory(data); }
  void device_copy(const kvasir_view& to, const kvasir_view& from) {
    const uint64_t bytes = gpu::bytes_of(from);
    if (bytes != gpu::bytes_of(to)) sdk::fail_invalid("views of unlike shapes are to be copied");
    const std::lock_guard lock(mutex());
    sdk::run_to_end(stream_, [&] { copy(to, from, bytes); });
  }
  void device_zero(void* data, uint64_t bytes) {
    const std::lock_guard lock(mutex());
    sdk::run_to_end(stream_, [&] { cuda::zero_memory(data, bytes, stream_); });
  }
  bool device_all_finite(const kvasir_view& of) {
    if (of.mem_kind != KVASIR_MEM_DEVICE || of.dtype != KVASIR_DTYPE_F32)
      sdk::fail_invalid("gpu: all_finite: f32 in device memory is asked for");
    const std::lock_guard lock(mutex());
    uint32_t n_bad = 0;
    sdk::run_to_end(stream_, [&] {
      const uint64_t count = sent_.ensure(sizeof n_bad);
      cuda::zero_memory(sent_.data(), sizeof n_bad, stream_);
      cuda::count_not_finite(address(of.data), gpu::bytes_of(of) / sizeof(float), count, stream_);
      cuda::copy_to_host(&n_bad, sent_.data(), sizeof n_bad, stream_);
    });
    return n_bad == 0;
  }

 private:
  struct SizeClass {
    explicit SizeClass(const sdk::KvLayout& l) : layout(l), arena(l.block_bytes()) {}
    sdk::KvLayout layout;
    gpu::DeviceArena arena;
  };

  SizeClass& size_class(uint32_t kv_head) {
    return kv_head == KVASIR_ALL_HEADS ? *all_heads_ : *one_head_;
  }

  void check_lease(const kvasir_lease& lease) const {
    for (const void* data : {lease.k, lease.v})
      if (!all_heads_->arena.holds(data) && !one_head_->arena.holds(data))
        sdk::fail_invalid("gpu: a lease names memory that is not of its blocks");
  }
  void check_leases(const sdk::TokenSpans& spans) const {
    for (const kvasir_token_span& span : spans) check_lease(*span.lease);
  }
  void check_values(const kvasir_view& view, uint64_t n, uint64_t dim, const char* what) const {
    const auto row = static_cast<int64_t>(dim * sizeof(float));
    const bool fits = view.rank == 3 && view.dtype == KVASIR_DTYPE_F32 && view.shape[0] == n &&
                      view.shape[1] == lists_->n_kv_heads() && view.shape[2] == dim &&
                      view.stride[1] == row && view.stride[0] == row * lists_->n_kv_heads();
    if (!fits)
      sdk::fail_invalid(std::string("gpu: write_tokens: ") + what + " must be f32 [" +
                        std::to_string(n) + "][" + std::to_string(lists_->n_kv_heads()) + "][" +
                        std::to_string(dim) + "], contiguous");
  }

  void list_saved(const sdk::TokenSpans& spans, uint64_t n_bytes) {
    check_leases(spans);
    const uint64_t wanted = lists_->saved_bytes(spans);
    if (n_bytes != wanted) {
      sdk::fail_invalid("gpu: these tokens take " + std::to_string(wanted) + " bytes, and " +
                        std::to_string(n_bytes) + " were given");
    }
    lists_->saved(spans, rows_);
  }

  template <class T>
  uint64_t send(const std::vector<T>& list) {
    const uint64_t at = sent_.ensure(list.size() * sizeof(T));
    cuda::copy_to_device(sent_.data(), list.data(), list.size() * sizeof(T), stream_);
    return at;
  }
  cuda::TokenRows sent_rows() {
    cuda::TokenRows call = lists_->rows(rows_.size());
    call.rows = send(rows_);
    return call;
  }
  // The view's numbers on the device.
  uint64_t bring(const kvasir_view& view, sdk::DeviceBuffer& hold) {
    if (view.mem_kind == KVASIR_MEM_DEVICE) return address(view.data);
    const uint64_t bytes = gpu::bytes_of(view), at = hold.ensure(bytes);
    cuda::copy_to_device(hold.data(), view.data, bytes, stream_);
    return at;
  }

  void copy(const kvasir_view& to, const kvasir_view& from, uint64_t bytes) {
    const bool to_device = to.mem_kind == KVASIR_MEM_DEVICE;
    const bool from_device = from.mem_kind == KVASIR_MEM_DEVICE;
    if (to_device && from_device) return cuda::copy_on_device(to.data, from.data, bytes, stream_);
    if (to_device) return cuda::copy_to_device(to.data, from.data, bytes, stream_);
    if (from_device) return cuda::copy_to_host(to.data, from.data, bytes, stream_);
    std::copy_n(static_cast<const std::byte*>(from.data), bytes, static_cast<std::byte*>(to.data));
  }

  sdk::KvTypes types_;

  std::optional<SizeClass> all_heads_, one_head_;
  std::optional<gpu::TokenLists> lists_;
  cuda::Stream stream_;
  sdk::DeviceBuffer sent_, k_values_, v_values_;
  std::vector<cuda::TokenRow> rows_;
  std::vector<cuda::TokenMove> moves_;
};

}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.gpu", "0.1.0", Gpu)
