// Copies between the memory of the host and that of a device. They are counted. Where all plugins
// work in host memory nothing is copied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "core/plugin/instance.h"

namespace kvasir {

// Whether the core may read and write memory of this kind by its address.
inline bool is_host_memory(uint32_t mem_kind) { return mem_kind <= KVASIR_MEM_PINNED; }

// A contiguous view of host memory. dtype: F32, U32 or U8.
kvasir_view host_view(const void* data, uint32_t dtype, std::initializer_list<uint64_t> shape);

// Elements [begin, end) of the first dimension.
kvasir_view elements(kvasir_view of, uint64_t begin, uint64_t end);

class MemoryBridge {
 public:
  // The storage gives the device memory, through kvasir.device-memory/1. It must outlive this, and
  // this must outlive all buffers and pages.
  explicit MemoryBridge(Storage& storage) : storage_(storage) {}

  // Device memory for one input or output, reused from call to call.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

   private:
    friend class MemoryBridge;
    MemoryBridge* owner_ = nullptr;
    void* data_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // A contiguous view of f32 on the host, or on the device, whoever allocated that.
  kvasir_view view(bool on_device, const float* data, std::initializer_list<uint64_t> shape) const;
  // A view of the shape of `like`, of memory of `hold` with undefined contents.
  kvasir_view on_device(const kvasir_view& like, Buffer& hold);
  // What to pass to `reader` for `from`, a contiguous view: `from` itself where it is on the device
  // or the reader reads host memory, else a copy on the device, which is valid until `hold` is used
  // again. A view of rank 0, which stands for no input, is returned as it is.
  kvasir_view to_reader(const Instance& reader, const kvasir_view& from, Buffer& hold);
  // Where `writer` is to write what is read in `into`: `into` itself where it is on the device or
  // the writer writes host memory, else memory of `hold` with undefined contents, which
  // from_writer() copies.
  kvasir_view to_writer(const Instance& writer, const kvasir_view& into, Buffer& hold);
  // Copies elements [begin, end) of the first dimension from `written`, which to_writer() returned
  // for `into`, unless they are the same.
  void from_writer(const kvasir_view& written, const kvasir_view& into, uint64_t begin,
                   uint64_t end);
  // Copies those elements between host and device, whichever is which.
  void copy(const kvasir_view& to, const kvasir_view& from, uint64_t begin, uint64_t end);

  // Has all that work on the device for a strategy (its plugins, the storage among them) use one
  // stream of the storage, in whose order their calls then are without waiting for each other. If
  // some of them cannot, nobody does, of the strategies before either. What their calls leave on
  // the device is read there, or through copy() and all_finite(), which wait for it.
  void share_stream(const std::vector<const Instance*>& users);
  // Whether all_finite() can be asked, of f32 on the device.
  bool checks_finite() const { return storage_.checks_finite(); }
  bool all_finite(const kvasir_view& of) { return storage_.device_all_finite(of); }
  // copy() of all of `from`, of one dimension, and all_finite() of each, together.
  std::vector<bool> fetch(const kvasir_view& to, const kvasir_view& from,
                          const std::vector<kvasir_view>& of);

  // Pages of records on the device; new ones are zeroed.
  std::shared_ptr<std::byte[]> new_page(uint64_t bytes);
  void copy_page(std::byte* to, const std::byte* from, uint64_t bytes);  // on the device
  void clear(std::byte* at, uint64_t bytes);
  void save_page(std::span<std::byte> to, const std::byte* from);  // to host memory
  void load_page(std::byte* to, std::span<const std::byte> from);  // from host memory

  // Bytes copied between host and device, in both directions. Tokens of blocks are copied by the
  // storage itself: its caller adds them.
  uint64_t copied_bytes() const { return copied_bytes_; }
  void add_copied(uint64_t bytes) { copied_bytes_ += bytes; }

 private:
  Storage& storage_;
  uint64_t copied_bytes_ = 0;
  bool may_share_ = true;
  kvasir_stream_handle stream_ = 0;
  std::vector<const Instance*> users_;  // of stream_
};

}  // namespace kvasir
