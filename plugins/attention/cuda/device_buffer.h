// Device memory that grows, and lists that travel there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime.h"
#include "plugins/attention/cuda/packer.h"

namespace kvasir::attention {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { cuda::free_memory(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;

  // The address of at least `bytes`; what was there is lost when it grows. The stream that uses it
  // must have come to rest by then. Throws cuda::Error.
  uint64_t ensure(uint64_t bytes) {
    if (bytes > bytes_) {
      cuda::free_memory(data_);
      data_ = nullptr;
      bytes_ = 0;
      const uint64_t grown = bytes + bytes / 4;
      data_ = cuda::allocate_memory(grown);
      bytes_ = grown;
    }
    return reinterpret_cast<uint64_t>(data_);
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The packed bytes in `buffer`; returns the address of offset 0.
inline uint64_t send(Packer& packer, DeviceBuffer& buffer, cuda::Stream stream) {
  const uint64_t base = buffer.ensure(packer.size());
  const std::span<const std::byte> bytes = packer.place(base);
  cuda::copy_to_device(buffer.data(), bytes.data(), bytes.size(), stream);
  return base;
}

}  // namespace kvasir::attention
