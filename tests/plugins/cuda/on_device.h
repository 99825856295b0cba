// Copies on the device of what a case has on the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/plugins/attention/attention_case.h"

namespace kvasir::test {

// Copies of host memory on the device, each an allocation of its own.
class OnDevice {
 public:
  OnDevice() = default;
  ~OnDevice() {
    for (void* data : data_) cuda::free_memory(data);
  }
  OnDevice(const OnDevice&) = delete;
  void* copy(const void* from, uint64_t bytes) {
    void* data = data_.emplace_back(cuda::allocate_memory(bytes));
    cuda::copy_to_device(data, from, bytes, {});
    cuda::wait({});  // the plugins' streams read it
    return data;
  }
  void move(kvasir_view& view) {
    uint64_t bytes = sizeof(float);
    for (uint32_t d = 0; d < view.rank; ++d) bytes *= view.shape[d];
    view.data = copy(view.data, bytes);
    view.mem_kind = KVASIR_MEM_DEVICE;
  }

 private:
  std::vector<void*> data_;
};

// K and V of the leases from `first` on; the case's formats must be of the device, too.
inline void move_leases(AttentionCase& c, size_t part, size_t first, OnDevice& device) {
  for (size_t i = first; i < c.leases[part].size(); ++i) {
    kvasir_lease& lease = c.leases[part][i];
    const kvasir_kv_format& f = c.formats[lease.format];
    lease.k = device.copy(lease.k, f.k_token_stride * c.geometry.block_size);
    lease.v = device.copy(lease.v, f.v_token_stride * c.geometry.block_size);
  }
  for (kvasir_kv_format& f : c.formats) f.mem_kind = KVASIR_MEM_DEVICE;
}
inline void move_blocks(AttentionCase& c, OnDevice& device) {
  for (size_t part = 0; part < c.leases.size(); ++part) move_leases(c, part, 0, device);
}

}  // namespace kvasir::test
