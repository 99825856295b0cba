// Products of panels on the device; see kernels/cuda/panel_product.h. Code for other architectures
// than sm_90a stops where it calls them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir::cuda {

// Keeps the compiler from moving other uses of the registers over this place.
template <uint32_t kN>
KVASIR_DEVICE void hold_registers(float (&d)[kN][4]) {
  KVASIR_UNROLL
  for (uint32_t n = 0; n < kN; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
  }
}

template <uint32_t kN>
KVASIR_DEVICE void hold_registers(uint32_t (&a)[kN][4]) {
  KVASIR_UNROLL
  for (uint32_t n = 0; n < kN; ++n) {
    KVASIR_UNROLL
    for (uint32_t i = 0; i < 4; ++i) asm volatile("" : "+r"(a[n][i])::"memory");
  }
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Start and offsets in units of 16 bytes; bits 62 and 63: a swizzle of 128 bytes. Eight rows of a
// panel follow the eight before at 1024 bytes: along the rows of A and B that is the stride, and
// along those that are summed it is, too; the leading offset is used by neither, since all columns
// lie within 128 bytes.
KVASIR_DEVICE uint64_t panel_descriptor(const uint16_t* at) {
  constexpr uint64_t kEightRows = 1024 >> 4;
  const uint64_t start = (shared_address(at) & 0x3ffffu) >> 4;
  return start | kEightRows << 16 | kEightRows << 32 | uint64_t{1} << 62;
}

template <uint32_t kN, class... A>
KVASIR_DEVICE void begin_products(float (&d)[kN][4], A&... a) {
  hold_registers(d);
  (hold_registers(a), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
KVASIR_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <uint32_t kLeft, uint32_t kN, class... A>
KVASIR_DEVICE void wait_for_products(float (&d)[kN][4], A&... a) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
  hold_registers(d);
  (hold_registers(a), ...);
}

template <uint32_t kRegisters>
KVASIR_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
KVASIR_DEVICE void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#define KVASIR_FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define KVASIR_SUMS                                                                               \
  KVASIR_FOUR(kFirst), KVASIR_FOUR(kFirst + 1), KVASIR_FOUR(kFirst + 2), KVASIR_FOUR(kFirst + 3), \
      KVASIR_FOUR(kFirst + 4), KVASIR_FOUR(kFirst + 5), KVASIR_FOUR(kFirst + 6),                  \
      KVASIR_FOUR(kFirst + 7)
#define KVASIR_PRODUCT(type, operands)                                                 \
  "{\n"                                                                                \
  ".reg .pred adds;\n"                                                                 \
  "setp.ne.b32 adds, 1, 0;\n"                                                          \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                          \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " operands "}"
#define KVASIR_MULTIPLY_COLUMNS(type)                                                 \
  asm volatile(KVASIR_PRODUCT(type, "{%32, %33, %34, %35}, %36, adds, 1, 1, 1;\n")    \
               : KVASIR_SUMS                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(panel_descriptor(b)) \
               : "memory")

#define KVASIR_WIDE_SUMS                                                                          \
  KVASIR_FOUR(0), KVASIR_FOUR(1), KVASIR_FOUR(2), KVASIR_FOUR(3), KVASIR_FOUR(4), KVASIR_FOUR(5), \
      KVASIR_FOUR(6), KVASIR_FOUR(7), KVASIR_FOUR(8), KVASIR_FOUR(9), KVASIR_FOUR(10),            \
      KVASIR_FOUR(11), KVASIR_FOUR(12), KVASIR_FOUR(13), KVASIR_FOUR(14), KVASIR_FOUR(15)
#define KVASIR_WIDE_PRODUCT(type, operands)                                \
  "{\n"                                                                    \
  ".reg .pred adds;\n"                                                     \
  "setp.ne.b32 adds, %66, 0;\n"                                            \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type             \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "         \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63}, " operands "}"
#define KVASIR_MULTIPLY_ROWS(type)                                                      \
  asm volatile(KVASIR_WIDE_PRODUCT(type, "%64, %65, adds, 1, 1, 0, 0;\n")               \
               : KVASIR_WIDE_SUMS                                                       \
               : "l"(panel_descriptor(a)), "l"(panel_descriptor(b)), "n"(kAdds ? 1 : 0) \
               : "memory")

template <bool kAdds>
KVASIR_DEVICE void multiply_rows_f16(float (&d)[16][4], const uint16_t* a, const uint16_t* b) {
  KVASIR_MULTIPLY_ROWS("f16");
}
template <bool kAdds>
KVASIR_DEVICE void multiply_rows_bf16(float (&d)[16][4], const uint16_t* a, const uint16_t* b) {
  KVASIR_MULTIPLY_ROWS("bf16");
}
template <uint32_t kFirst, uint32_t kN>
KVASIR_DEVICE void multiply_columns_f16(float (&d)[kN][4], const uint32_t (&a)[4],
                                        const uint16_t* b) {
  KVASIR_MULTIPLY_COLUMNS("f16");
}
template <uint32_t kFirst, uint32_t kN>
KVASIR_DEVICE void multiply_columns_bf16(float (&d)[kN][4], const uint32_t (&a)[4],
                                         const uint16_t* b) {
  KVASIR_MULTIPLY_COLUMNS("bf16");
}
#undef KVASIR_MULTIPLY_COLUMNS
#undef KVASIR_PRODUCT
#undef KVASIR_SUMS
#undef KVASIR_MULTIPLY_ROWS
#undef KVASIR_WIDE_PRODUCT
#undef KVASIR_WIDE_SUMS
#undef KVASIR_FOUR

#else

template <uint32_t kN, class... A>
KVASIR_DEVICE void begin_products(float (&)[kN][4], A&...) {
  __trap();
}
KVASIR_DEVICE void commit_products() { __trap(); }
template <uint32_t kLeft, uint32_t kN, class... A>
KVASIR_DEVICE void wait_for_products(float (&)[kN][4], A&...) {
  __trap();
}
template <uint32_t kRegisters>
KVASIR_DEVICE void take_registers() {
  __trap();
}
template <uint32_t kRegisters>
KVASIR_DEVICE void leave_registers() {
  __trap();
}
template <bool kAdds>
KVASIR_DEVICE void multiply_rows_f16(float (&)[16][4], const uint16_t*, const uint16_t*) {
  __trap();
}
template <bool kAdds>
KVASIR_DEVICE void multiply_rows_bf16(float (&)[16][4], const uint16_t*, const uint16_t*) {
  __trap();
}
template <uint32_t kFirst, uint32_t kN>
KVASIR_DEVICE void multiply_columns_f16(float (&)[kN][4], const uint32_t (&)[4], const uint16_t*) {
  __trap();
}
template <uint32_t kFirst, uint32_t kN>
KVASIR_DEVICE void multiply_columns_bf16(float (&)[kN][4], const uint32_t (&)[4], const uint16_t*) {
  __trap();
}

#endif

}  // namespace kvasir::cuda
