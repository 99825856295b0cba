// The one place where bytes cross between the memory of the host and that of a device. Every copy
// is counted; where all plugins work in host memory nothing here copies anything.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

#include "core/plugin/instance.h"

namespace kvasir {

// Whether the core may read and write it by its address.
inline bool is_host_memory(uint32_t mem_kind) { return mem_kind <= KVASIR_MEM_PINNED; }

// A contiguous view of host memory; the elements of `dtype` (F32, U32, U8) have 4, 4 and 1 bytes.
kvasir_view host_view(const void* data, uint32_t dtype, std::initializer_list<uint64_t> shape);

class MemoryBridge {
 public:
  // The device is the storage's: what it offers as kvasir.device-memory/1. It must outlive this,
  // and this all buffers and pages.
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

  // What `reader` is handed for `from`, a contiguous view of host memory: `from` itself, or a copy
  // on the device, in `hold` until its next use. A view that is not given stays so.
  kvasir_view to_reader(const Instance& reader, const kvasir_view& from, Buffer& hold);
  // Where `writer` writes what is to be read in `into`: there itself, or in `hold`, whose contents
  // are then undefined; from_writer() brings it.
  kvasir_view to_writer(const Instance& writer, const kvasir_view& into, Buffer& hold);
  // Brings elements [begin, end) of the first dimension of what was written into `into`.
  void from_writer(const kvasir_view& written, const kvasir_view& into, uint64_t begin,
                   uint64_t end);

  // Pages of records on the device, zeroed.
  std::shared_ptr<std::byte[]> new_page(uint64_t bytes);
  void copy_page(std::byte* to, const std::byte* from, uint64_t bytes);  // on the device
  void clear(std::byte* at, uint64_t bytes);
  void save_page(std::span<std::byte> to, const std::byte* from);
  void load_page(std::byte* to, std::span<const std::byte> from);

  // Bytes that crossed, in both directions. The storage moves rows of blocks itself and the caller
  // says how many.
  uint64_t copied_bytes() const { return copied_bytes_; }
  void add_copied(uint64_t bytes) { copied_bytes_ += bytes; }

 private:
  kvasir_view on_device(const kvasir_view& like, Buffer& hold);

  Storage& storage_;
  uint64_t copied_bytes_ = 0;
};

}  // namespace kvasir
