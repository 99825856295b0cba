// The language of kernels on the device; see kernels/cuda/device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#define KVASIR_KERNEL __global__
#define KVASIR_DEVICE __device__ __forceinline__
#define KVASIR_HOST_DEVICE __host__ __device__ __forceinline__
#define KVASIR_BOUNDS(threads) __launch_bounds__(threads, 1)
#define KVASIR_BOUNDS_TOGETHER(threads, blocks) __launch_bounds__(threads, blocks)
#define KVASIR_UNROLL _Pragma("unroll")
#define KVASIR_NO_UNROLL _Pragma("unroll 1")
#define KVASIR_SHARED(T, name, n)             \
  __shared__ __align__(16) T name##_array[n]; \
  const ::kvasir::cuda::Shared<T> name = name##_array

namespace kvasir::cuda {

KVASIR_DEVICE uint32_t thread_x() { return threadIdx.x; }
KVASIR_DEVICE uint32_t threads_x() { return blockDim.x; }
KVASIR_DEVICE uint32_t block_x() { return blockIdx.x; }
KVASIR_DEVICE uint32_t block_y() { return blockIdx.y; }
KVASIR_DEVICE uint32_t blocks_x() { return gridDim.x; }

KVASIR_DEVICE void block_sync() { __syncthreads(); }
KVASIR_DEVICE void warp_sync(uint32_t mask = kAllLanes) { __syncwarp(mask); }

template <class T>
KVASIR_DEVICE T shuffle(uint32_t mask, T value, uint32_t lane) {
  return __shfl_sync(mask, value, static_cast<int>(lane));
}
template <class T>
KVASIR_DEVICE T shuffle_xor(uint32_t mask, T value, uint32_t lanes) {
  return __shfl_xor_sync(mask, value, static_cast<int>(lanes));
}
KVASIR_DEVICE uint32_t ballot(uint32_t mask, bool condition) {
  return __ballot_sync(mask, condition);
}

template <class T>
KVASIR_DEVICE T atomic_add(T* at, T value) {
  return atomicAdd(at, value);
}

template <class T>
KVASIR_DEVICE T* global(uint64_t address) {
  return reinterpret_cast<T*>(address);
}
template <class U, class T>
KVASIR_DEVICE U* cast(T* at) {
  return reinterpret_cast<U*>(at);
}
template <class V, class T>
KVASIR_DEVICE V read_as(const T* at) {
  return *reinterpret_cast<const V*>(at);
}
template <class V>
KVASIR_DEVICE V read_constant(uint64_t address) {
  static_assert(sizeof(V) == 16 || sizeof(V) == 8 || sizeof(V) == 4 || sizeof(V) == 2);
  const auto read = [&]<class T>(T) {
    const T bits = __ldg(reinterpret_cast<const T*>(address));
    return *reinterpret_cast<const V*>(&bits);
  };
  if constexpr (sizeof(V) == 16) return read(uint4{});
  if constexpr (sizeof(V) == 8) return read(uint2{});
  if constexpr (sizeof(V) == 4) return read(0u);
  if constexpr (sizeof(V) == 2) return read(static_cast<unsigned short>(0));
}
template <class V, class T>
KVASIR_DEVICE void write_as(T* at, const V& value) {
  *reinterpret_cast<V*>(at) = value;
}

KVASIR_DEVICE uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

class SharedMemory {
 public:
  template <class T>
  KVASIR_DEVICE T* take(uint32_t n) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* array = reinterpret_cast<T*>(memory + used_);
    used_ += (n * static_cast<uint32_t>(sizeof(T)) + 15) / 16 * 16;
    return array;
  }
  KVASIR_DEVICE uint16_t* take_panels(uint32_t n) {
    extern __shared__ __align__(16) unsigned char memory[];
    used_ += (0u - shared_address(memory + used_)) % kPanelAlignment;
    auto* panels = reinterpret_cast<uint16_t*>(memory + used_);
    used_ += n * kPanelBytes;
    return panels;
  }

 private:
  uint32_t used_ = 0;
};

KVASIR_DEVICE float round_product(float x, float y) { return __fmul_rn(x, y); }
KVASIR_DEVICE float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
KVASIR_DEVICE uint32_t count_bits(uint32_t x) { return static_cast<uint32_t>(__popc(x)); }
KVASIR_DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
KVASIR_DEVICE uint32_t float_to_bits(float x) { return __float_as_uint(x); }
KVASIR_DEVICE uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t bits) {
  return __funnelshift_r(low, high, bits);
}
KVASIR_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}
KVASIR_DEVICE float half_to_float(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

}  // namespace kvasir::cuda
