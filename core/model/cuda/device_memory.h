// Memory of the device that is given back, and addresses within it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "core/model/layers/device_layers.h"
#include "kernels/cuda/runtime.h"

namespace kvasir {

class DeviceMemory {
 public:
  explicit DeviceMemory(uint64_t bytes)
      : bytes_(bytes), data_(bytes ? cuda::allocate_memory(bytes) : nullptr) {}
  ~DeviceMemory() { cuda::free_memory(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept
      : bytes_(other.bytes_), used_(other.used_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  uint64_t n_bytes() const { return bytes_; }
  // The next bytes of it, aligned as DeviceBuffers::aligned() counts.
  uint64_t take(uint64_t bytes) {
    const uint64_t at = reinterpret_cast<uint64_t>(data_) + used_;
    used_ += DeviceBuffers::aligned(bytes);
    return at;
  }

 private:
  uint64_t bytes_, used_ = 0;
  void* data_;
};

}  // namespace kvasir
