// The language of kernels. One source file is compiled by nvcc for the device and by the host's
// compiler for the emulation (KVASIR_CUDA_EMULATION), where it runs with every access checked.
//
//   device                       here
//   __global__, __device__       KVASIR_KERNEL, KVASIR_DEVICE, KVASIR_HOST_DEVICE
//   __launch_bounds__            KVASIR_BOUNDS(threads), KVASIR_BOUNDS_TOGETHER(threads, blocks)
//   blockIdx, threadIdx, …       block_x(), block_y(), thread_x(), threads_x(), blocks_x()
//   T* in global, shared memory  Global<T>, Shared<T>; follow addresses by global<T>(address)
//   __shared__ T name[n]         KVASIR_SHARED(T, name, n)
//   extern __shared__            SharedMemory, array by array
//   __syncthreads, __syncwarp    block_sync(), warp_sync(mask)
//   __shfl_sync, __ballot_sync   shuffle(), shuffle_xor(), ballot(); masks as there
//   atomicAdd, __popc            atomic_add(), count_bits()
//   __funnelshift_r              funnel_right(low, high, bits): 32 of 64 bits, from that one on
//   __byte_perm                  permute_bytes(low, high, selector)
//   __fmul_rn                    round_product(), which no sum takes in unrounded
//   ex2.approx.ftz               power_of_2(), of 2 ulp; below 2^-126 0
//   16-byte loads and stores     read_as<V>(), write_as<V>()
//   __ldg                        read_constant<V>(address)
//   tensor cores, cp.async       tensor.h
//   mbarrier                     phase_barrier.h
//   wgmma                        panel_product.h
//
// What a kernel may not do: call the language's own names, keep addresses of elements, print,
// allocate, throw.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/pointer.h"

namespace kvasir::cuda {

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// 16 bytes that travel in one instruction.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};
struct alignas(16) Floats4 {
  float at[4];
};

// Matrices of panel_product.h in shared memory.
inline constexpr uint32_t kPanelBytes = 8192, kPanelAlignment = 1024;

// Counts the bytes of the arrays that SharedMemory will be asked for, in any order.
struct SharedSize {
  uint32_t bytes = 0;
  template <class T>
  void add(uint32_t n) {
    bytes += (n * static_cast<uint32_t>(sizeof(T)) + 15) / 16 * 16;
  }
  void add_panels(uint32_t n) { bytes += n * kPanelBytes + kPanelAlignment - 16; }
};

}  // namespace kvasir::cuda

#ifdef KVASIR_CUDA_EMULATION
#include "kernels/cuda/emulation/device.h"
#else
#include "kernels/cuda/nvcc/device.h"
#endif
