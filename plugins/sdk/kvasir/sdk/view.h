// Views in host memory as C++ sees them, checked once per call; for a device they are the plugin's
// own business.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace kvasir::sdk {

// The elements of a contiguous view of `dtype`; `what` names it in the error. Null when it was not
// given.
inline void* host_data(const kvasir_view& view, uint32_t dtype, const char* what) {
  if (view.rank == 0 || !view.data) return nullptr;
  if (view.mem_kind > KVASIR_MEM_PINNED)
    fail_invalid(std::string(what) + " lies in memory that this plugin cannot read or write");
  if (view.dtype != dtype) fail_invalid(std::string(what) + " has another element type than asked");
  int64_t stride = sizeof(float);
  for (uint32_t d = view.rank; d-- > 0; stride *= static_cast<int64_t>(view.shape[d]))
    if (view.shape[d] > 1 && view.stride[d] != stride)
      fail_invalid(std::string(what) + " is not contiguous");
  return view.data;
}
inline float* floats(const kvasir_view& view, const char* what) {
  return static_cast<float*>(host_data(view, KVASIR_DTYPE_F32, what));
}
inline uint32_t* positions(const kvasir_view& view, const char* what) {
  return static_cast<uint32_t*>(host_data(view, KVASIR_DTYPE_U32, what));
}

// A contiguous view of 4-byte elements in host memory; it is the reader who may not write.
inline kvasir_view host_view(const void* data, std::initializer_list<uint64_t> shape,
                             uint32_t dtype = KVASIR_DTYPE_F32) {
  kvasir_view view{};
  view.struct_size = sizeof view;
  view.dtype = dtype;
  view.data = const_cast<void*>(data);  // NOLINT: inputs and outputs have one type
  view.mem_kind = KVASIR_MEM_HOST;
  for (const uint64_t n : shape) view.shape[view.rank++] = n;
  int64_t stride = sizeof(float);
  for (uint32_t d = view.rank; d-- > 0; stride *= static_cast<int64_t>(view.shape[d]))
    view.stride[d] = stride;
  return view;
}

}  // namespace kvasir::sdk
