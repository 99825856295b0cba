// Who made this CPU, where that tells how fast something is and no feature bit does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvasir::kernels {

inline const bool kIsIntel = [] {
#if defined(__x86_64__)
  __builtin_cpu_init();  // this may run before the runtime's own
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}();

// Of AMD's CPUs, 0x19 with AVX-512 a Zen 4, from 0x1a on a Zen 5; 0 of others.
inline const unsigned kAmdFamily = [] {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0u;
  return (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
#else
  return 0u;
#endif
}();

}  // namespace kvasir::kernels
