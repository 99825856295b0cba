// KVASIR_QUAD_DOT: 1 where the target has VNNI's sums of four products of unsigned and signed
// bytes, and VBMI's order of bytes, which Highway 1.0.3 knows but does not let the compiler use.
// clang, which has no such pragma, gets 0: pairs of products. Included behind
// HWY_BEFORE_NAMESPACE(), once for each target.
// SPDX-License-Identifier: Apache-2.0
#undef KVASIR_QUAD_DOT
#if HWY_TARGET == HWY_AVX3_DL && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512vnni,avx512vbmi")
#define KVASIR_QUAD_DOT 1
#else
#define KVASIR_QUAD_DOT 0
#endif
