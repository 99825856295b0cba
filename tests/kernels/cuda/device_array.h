// An array in the memory of the device, for tests of kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/pointer.h"
#include "kernels/cuda/runtime.h"

namespace kvasir::test {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(uint64_t n) : n_(n), data_(cuda::allocate_memory(n * sizeof(T))) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    cuda::copy_to_device(data_, values.data(), n_ * sizeof(T), {});
    cuda::wait({});  // other streams read it, too
  }
  ~DeviceArray() { cuda::free_memory(data_); }
  DeviceArray(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  cuda::Global<T> pointer() const { return cuda::Global<T>(data_); }
  uint64_t size() const { return n_; }
  std::vector<T> values() const {
    std::vector<T> out(n_);
    cuda::copy_to_host(out.data(), data_, n_ * sizeof(T), {});
    cuda::wait({});
    return out;
  }

 private:
  uint64_t n_;
  void* data_;
};

template <class T>
uint64_t address(const DeviceArray<T>& array) {
  return reinterpret_cast<uint64_t>(array.data());
}

}  // namespace kvasir::test
