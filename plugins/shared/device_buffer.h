// Device memory that grows, lists that travel there, and what the device refuses. For plugins that
// link kvasir::cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/error.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/runtime.h"
#include "plugins/shared/packer.h"

namespace kvasir::sdk {

// What the device refuses, as an error of the ABI.
template <class Fn>
void on_device(Fn&& fn) {
  try {
    fn();
  } catch (const cuda::Error& e) {
    throw Error(e.is_out_of_memory() ? KVASIR_ERR_OUT_OF_MEMORY : KVASIR_ERR_INTERNAL, e.what());
  }
}

// What fn() starts on the stream goes on after this call, but ends with it when it throws: nothing
// uses the buffers of a call that failed.
template <class Fn>
void run_on(cuda::Stream stream, Fn&& fn) {
  on_device([&] {
    try {
      fn();
    } catch (...) {
      cuda::wait(stream);
      throw;
    }
  });
}
// The same, ended with this call in any case.
template <class Fn>
void run_to_end(cuda::Stream stream, Fn&& fn) {
  run_on(stream, fn);
  on_device([&] { cuda::wait(stream); });
}

inline uint64_t address(const void* data) { return reinterpret_cast<uint64_t>(data); }

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { cuda::free_memory(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;

  // The address of at least `bytes`; what was there is lost when it grows, to `most` where that
  // suffices. The stream that uses it must have come to rest by then. Throws cuda::Error.
  uint64_t ensure(uint64_t bytes, uint64_t most = UINT64_MAX) {
    if (bytes > bytes_) {
      cuda::free_memory(data_);
      data_ = nullptr;
      bytes_ = 0;
      const uint64_t grown = std::max(bytes, std::min(bytes + bytes / 4, most));
      data_ = cuda::allocate_memory(grown);
      bytes_ = grown;
    }
    return address(data_);
  }
  // The same; waits for the stream, which uses it, before it grows.
  uint64_t ensure(uint64_t bytes, cuda::Stream stream) {
    if (bytes > bytes_ && data_) cuda::wait(stream);
    return ensure(bytes);
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The packed bytes in `buffer`, whatever the stream still does with it; returns the address of
// offset 0.
inline uint64_t send(Packer& packer, DeviceBuffer& buffer, cuda::Stream stream) {
  const uint64_t base = buffer.ensure(packer.size(), stream);
  const std::span<const std::byte> bytes = packer.place(base);
  cuda::copy_to_device(buffer.data(), bytes.data(), bytes.size(), stream);
  return base;
}

}  // namespace kvasir::sdk
