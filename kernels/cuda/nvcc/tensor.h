// Products of a warp and asynchronous copies on the device; see kernels/cuda/tensor.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvasir::cuda {

#define KVASIR_MULTIPLY(shape, types)                                                 \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." types                        \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

KVASIR_DEVICE void multiply_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  KVASIR_MULTIPLY("m16n8k16", "f16.f16");
}
KVASIR_DEVICE void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  KVASIR_MULTIPLY("m16n8k16", "bf16.bf16");
}
KVASIR_DEVICE void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  KVASIR_MULTIPLY("m16n8k8", "tf32.tf32");
}
#undef KVASIR_MULTIPLY

KVASIR_DEVICE void load_matrices(uint32_t (&out)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
KVASIR_DEVICE void load_matrices_transposed(uint32_t (&out)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

KVASIR_DEVICE uint32_t transpose_matrix(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

template <class T>
KVASIR_DEVICE void copy_ahead(T* to, uint64_t from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
KVASIR_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint32_t kLeft>
KVASIR_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Two numbers rounded to nearest, the first in the lower half.
KVASIR_DEVICE uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return static_cast<uint32_t>(__half_as_ushort(pair.x)) |
         static_cast<uint32_t>(__half_as_ushort(pair.y)) << 16;
}
KVASIR_DEVICE uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}
// Rounded to the 10 bits behind the point that tf32 has, as the bits of an f32.
KVASIR_DEVICE uint32_t round_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

}  // namespace kvasir::cuda
