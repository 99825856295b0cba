// A device as a storage works on it: tokens of blocks that lie there are written, moved, saved and
// loaded by kernels, and its memory is lent to others (kvasir.device-memory/1). For plugins that
// link kvasir::cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/device_memory.h>
#include <kvasir/ext/draft/stream.h>
#include <kvasir/sdk/plugin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/finite.h"
#include "plugins/shared/device_buffer.h"
#include "plugins/shared/token_lists.h"

namespace kvasir::sdk {

// For any thread; whether leases are on the device is the caller's to check. Work is done when a
// call returns; once its stream is lent (kvasir.stream-user/1), work on the device alone goes on
// there. It has and gives one stream (kvasir.stream/1): what others do there is in order with it.
class DeviceMemory {
 public:
  // storage: in messages. layout: of the blocks.
  DeviceMemory(const char* storage, const kvasir_geometry& geometry, const KvLayout& layout)
      : storage_(storage), lists_(geometry, layout) {
    on_device([&] { stream_ = cuda::make_stream(); });
  }
  ~DeviceMemory() { cuda::destroy_stream(stream_); }
  DeviceMemory(const DeviceMemory&) = delete;

  // ---- tokens, as kvasir_storage says ----

  void write_tokens(const TokenSpans& spans, const kvasir_view& k, const kvasir_view& v) {
    const std::lock_guard lock(mutex_);
    lists_.written(spans, rows_);
    const uint64_t n = lists_.n_tokens(spans);
    check_values(k, n, lists_.head_dim(), "K");
    check_values(v, n, lists_.v_dim(), "V");
    const bool are_there = k.mem_kind == KVASIR_MEM_DEVICE && v.mem_kind == KVASIR_MEM_DEVICE;
    run(are_there, [&] {
      const uint64_t on_k = bring(k, k_values_), on_v = bring(v, v_values_);
      cuda::write_rows(sent_rows(), on_k, on_v, stream_);
    });
  }

  void copy_tokens(const TokenCopies& copies) {
    const std::lock_guard lock(mutex_);
    lists_.moved(copies, moves_);
    run(true, [&] {
      cuda::TokenMoves call = lists_.moves(moves_.size());
      call.moves = send(moves_);
      cuda::move_tokens(call, stream_);
    });
  }

  void save_tokens(const TokenSpans& spans, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    list_saved(spans, bytes.size());
    run_to_end(stream_, [&] {
      const uint64_t packed = k_values_.ensure(bytes.size(), stream_);
      cuda::pack_rows(sent_rows(), packed, stream_);
      cuda::copy_to_host(bytes.data(), k_values_.data(), bytes.size(), stream_);
    });
  }

  void load_tokens(const TokenSpans& spans, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    list_saved(spans, bytes.size());
    run_to_end(stream_, [&] {
      const uint64_t packed = k_values_.ensure(bytes.size(), stream_);
      cuda::copy_to_device(k_values_.data(), bytes.data(), bytes.size(), stream_);
      cuda::unpack_rows(sent_rows(), packed, stream_);
    });
  }

  // ---- kvasir.device-memory/1 ----

  // What was given to the stream may still use it.
  void free(void* data) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (is_shared_) cuda::wait(stream_);
    } catch (const std::exception&) {  // told by whoever waits for what it did
    }
    cuda::free_memory(data);
  }
  void* alloc(uint64_t bytes) const {
    void* data = nullptr;
    on_device([&] { data = cuda::allocate_memory(bytes); });
    return data;
  }
  void copy(const kvasir_view& to, const kvasir_view& from) {
    const uint64_t bytes = checked_bytes(to, from);
    const std::lock_guard lock(mutex_);
    run_to_end(stream_, [&] { copy_bytes(to, from, bytes); });
  }
  void zero(void* data, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    run(true, [&] { cuda::zero_memory(data, bytes, stream_); });
  }
  bool all_finite(const kvasir_view& of) {
    const std::lock_guard lock(mutex_);
    run_to_end(stream_, [&] { count_in({&of, 1}); });
    return n_bad_[0] == 0;
  }
  void fetch(const kvasir_view& to, const kvasir_view& from, std::span<const kvasir_view> of,
             uint32_t* out) {
    const uint64_t bytes = checked_bytes(to, from);
    const std::lock_guard lock(mutex_);
    run_to_end(stream_, [&] {
      copy_bytes(to, from, bytes);
      count_in(of);
    });
    for (size_t i = 0; i < of.size(); ++i) out[i] = n_bad_[i] == 0 ? 1 : 0;
  }

  // ---- kvasir.stream/1, kvasir.stream-user/1 ----

  kvasir_stream_handle stream() const {
    return reinterpret_cast<kvasir_stream_handle>(stream_.handle);
  }
  void lend(kvasir_stream_handle stream) {
    const std::lock_guard lock(mutex_);
    if (stream != 0 && stream != this->stream())
      fail_invalid(std::string(storage_) + ": a stream is lent that is not its own");
    is_shared_ = stream != 0;
    wait();
  }
  // For all that the stream was given.
  void wait() const {
    on_device([&] { cuda::wait(stream_); });
  }

 private:
  // Ends with the call, but where the stream is shared and nothing comes from the host or goes
  // there.
  template <class Fn>
  void run(bool is_on_device_alone, Fn&& fn) {
    if (!is_on_device_alone || !is_shared_) return run_to_end(stream_, fn);
    run_on(stream_, fn);
  }
  // How many numbers of each view are not finite, into n_bad_.
  void count_in(std::span<const kvasir_view> of) {
    n_bad_.assign(of.size(), 0);
    const uint64_t bytes = of.size() * sizeof(uint32_t);
    if (bytes == 0) return;
    const uint64_t counts = sent_.ensure(bytes, stream_);
    cuda::zero_memory(sent_.data(), bytes, stream_);
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i].mem_kind != KVASIR_MEM_DEVICE || of[i].dtype != KVASIR_DTYPE_F32)
        fail_invalid(std::string(storage_) + ": all_finite: f32 in device memory is asked for");
      cuda::count_not_finite(address(of[i].data), bytes_of(of[i]) / sizeof(float),
                             counts + i * sizeof(uint32_t), stream_);
    }
    cuda::copy_to_host(n_bad_.data(), sent_.data(), bytes, stream_);
  }
  static uint64_t checked_bytes(const kvasir_view& to, const kvasir_view& from) {
    const uint64_t bytes = bytes_of(from);
    if (bytes != bytes_of(to)) fail_invalid("views of unlike shapes are to be copied");
    return bytes;
  }
  // Of a contiguous view of F32, U32 or U8.
  static uint64_t bytes_of(const kvasir_view& view) {
    uint64_t bytes = view.dtype == KVASIR_DTYPE_U8 ? 1 : 4;
    for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
    return bytes;
  }

  void check_values(const kvasir_view& view, uint64_t n, uint64_t dim, const char* what) const {
    const auto row = static_cast<int64_t>(dim * sizeof(float));
    const bool fits = view.rank == 3 && view.dtype == KVASIR_DTYPE_F32 && view.shape[0] == n &&
                      view.shape[1] == lists_.n_kv_heads() && view.shape[2] == dim &&
                      view.stride[1] == row && view.stride[0] == row * lists_.n_kv_heads();
    if (!fits)
      fail_invalid(std::string(storage_) + ": write_tokens: " + what + " must be f32 [" +
                   std::to_string(n) + "][" + std::to_string(lists_.n_kv_heads()) + "][" +
                   std::to_string(dim) + "], contiguous");
  }

  void list_saved(const TokenSpans& spans, uint64_t n_bytes) {
    const uint64_t wanted = lists_.saved_bytes(spans);
    if (n_bytes != wanted) {
      fail_invalid(std::string(storage_) + ": these tokens take " + std::to_string(wanted) +
                   " bytes, and " + std::to_string(n_bytes) + " were given");
    }
    lists_.saved(spans, rows_);
  }

  template <class T>
  uint64_t send(const std::vector<T>& list) {
    const uint64_t at = sent_.ensure(list.size() * sizeof(T), stream_);
    cuda::copy_to_device(sent_.data(), list.data(), list.size() * sizeof(T), stream_);
    return at;
  }
  cuda::TokenRows sent_rows() {
    cuda::TokenRows call = lists_.rows(rows_.size());
    call.rows = send(rows_);
    return call;
  }
  // The view's numbers on the device.
  uint64_t bring(const kvasir_view& view, DeviceBuffer& hold) {
    if (view.mem_kind == KVASIR_MEM_DEVICE) return address(view.data);
    const uint64_t bytes = bytes_of(view), at = hold.ensure(bytes, stream_);
    cuda::copy_to_device(hold.data(), view.data, bytes, stream_);
    return at;
  }

  void copy_bytes(const kvasir_view& to, const kvasir_view& from, uint64_t bytes) {
    const bool to_device = to.mem_kind == KVASIR_MEM_DEVICE;
    const bool from_device = from.mem_kind == KVASIR_MEM_DEVICE;
    if (to_device && from_device) return cuda::copy_on_device(to.data, from.data, bytes, stream_);
    if (to_device) return cuda::copy_to_device(to.data, from.data, bytes, stream_);
    if (from_device) return cuda::copy_to_host(to.data, from.data, bytes, stream_);
    std::copy_n(static_cast<const std::byte*>(from.data), bytes, static_cast<std::byte*>(to.data));
  }

  const char* storage_;
  TokenLists lists_;
  std::mutex mutex_;  // of all below
  cuda::Stream stream_;
  bool is_shared_ = false;
  DeviceBuffer sent_, k_values_, v_values_;
  std::vector<uint32_t> n_bad_;
  std::vector<cuda::TokenRow> rows_;
  std::vector<cuda::TokenMove> moves_;
};

// kvasir.device-memory/1 of a storage class with device_memory(), which returns its DeviceMemory.
template <class T>
const kvasir_device_memory* device_memory_table() {
  using detail::as;
  static constexpr kvasir_device_memory kTable = {
      sizeof(kvasir_device_memory),
      0,
      [](void* self, uint64_t bytes, void** out, kvasir_err* err) noexcept {
        return guard(err, [&] { *out = as<T>(self).device_memory().alloc(bytes); });
      },
      [](void* self, void* data) noexcept { as<T>(self).device_memory().free(data); },
      [](void* self, const kvasir_view* to, const kvasir_view* from, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).device_memory().copy(*to, *from); });
      },
      [](void* self, void* data, uint64_t bytes, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).device_memory().zero(data, bytes); });
      },
      [](void* self, const kvasir_view* of, uint32_t* out, kvasir_err* err) noexcept {
        return guard(err, [&] { *out = as<T>(self).device_memory().all_finite(*of) ? 1 : 0; });
      },
      [](void* self, const kvasir_view* to, const kvasir_view* from, const kvasir_view* of,
         uint32_t n, uint32_t* out, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).device_memory().fetch(*to, *from, {of, n}, out); });
      }};
  return &kTable;
}

// kvasir.stream/1 of the same. An event is all that the one stream was given.
template <class T>
const kvasir_stream* stream_table() {
  using detail::as;
  static constexpr kvasir_stream kTable = {
      sizeof(kvasir_stream),
      0,
      [](void* self, kvasir_stream_handle* out, kvasir_err* err) noexcept {
        return guard(err, [&] { *out = as<T>(self).device_memory().stream(); });
      },
      [](void* self, kvasir_stream_handle) noexcept {
        guard(nullptr, [&] { as<T>(self).device_memory().wait(); });
      },
      [](void*, kvasir_stream_handle stream, kvasir_event_handle* out, kvasir_err*) noexcept {
        *out = stream;
        return KVASIR_OK;
      },
      [](void*, kvasir_stream_handle, kvasir_event_handle, kvasir_err*) noexcept {
        return KVASIR_OK;
      },
      [](void* self, kvasir_event_handle, kvasir_err* err) noexcept {
        return guard(err, [&] { as<T>(self).device_memory().wait(); });
      }};
  return &kTable;
}

}  // namespace kvasir::sdk
