// In which order lines of memory that are read soon are asked for, and into which cache. No result
// depends on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu_vendor.h"

namespace kvasir::kernels {

// Whether lines that lie apart, asked for in turn, come sooner than lines one behind the other:
// on Intel's Granite and Emerald Rapids by a tenth. AMD's Zen 5 reads 60 to 74 % of its bandwidth
// that way, and 94 to 99 % line after line. Others are taken for the latter.
inline const bool kPrefetchInTurn = kIsIntel;

// Whether K, V and coarse copies are asked for into the first cache: on AMD's Zen 5 attention over
// f16 takes 5 % less time than into the second. On Zen 4, whose few miss buffers then wait for
// memory, over f16 a third more, over q8_0 a half more, and copies a fifth. Others are taken for
// the latter.
inline const bool kPrefetchIntoFirstCache = kAmdFamily >= 0x1a;

// Whether K and V that are multiplied as integers are asked for into the first cache, too, a tile
// after they were asked for into the second: on Zen 4 q4_0 and q8_0 from memory take 3 % less time,
// on Zen 3 up to 15 % more, on Zen 5 5 to 10 %. Not measured on others.
inline const bool kPrefetchThroughCaches = [] {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return kAmdFamily == 0x19 && __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}();

// Whether lines of K are asked for during the softmax before, too, when memory would have nothing
// to do: where K is multiplied in f32, and where it is multiplied as integers. On Intel's Emerald
// Rapids f16 and bf16 from memory take 1.5 % less time, but q8_0 2 % more and q4_0 as long; on Zen
// 5 q4_0 takes 6 % less, q8_0 2 %. Zen 2 and, over f16, Zen 3 gain nothing. Not measured on
// others.
inline const bool kPrefetchInSoftmaxOfFloats = kIsIntel;
inline const bool kPrefetchInSoftmaxOfIntegers = kAmdFamily >= 0x1a;

[[gnu::always_inline]] inline void prefetch_line(const void* line) {
  if (kPrefetchIntoFirstCache) {
    __builtin_prefetch(line, 0, 3);
  } else {
    __builtin_prefetch(line, 0, 2);
  }
}

}  // namespace kvasir::kernels
