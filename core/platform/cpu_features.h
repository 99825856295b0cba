// Instruction sets that both the processor has and the operating system lets this process use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvasir {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512_vnni = false, avx512_bf16 = false, avx512_fp16 = false;
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
  std::string vendor;  // "GenuineIntel"; empty when this is no x86-64
  std::string model;   // "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"

  std::string list() const;  // "avx2 fma f16c …", only what is present
};

// Asks the kernel for AMX tile state on the first call (Linux grants it per process, on request).
const CpuFeatures& cpu_features();

}  // namespace kvasir
