// cpuid, and the state the operating system saves (xgetbv).
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/cpu_features.h"

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/simd_target.h"

namespace kvasir {

std::string CpuFeatures::list() const {
  const std::pair<bool, const char*> all[] = {{avx2, "avx2"},
                                              {fma, "fma"},
                                              {f16c, "f16c"},
                                              {avx512f, "avx512f"},
                                              {avx512bw, "avx512bw"},
                                              {avx512dq, "avx512dq"},
                                              {avx512vl, "avx512vl"},
                                              {avx512_vnni, "avx512_vnni"},
                                              {avx512_bf16, "avx512_bf16"},
                                              {avx512_fp16, "avx512_fp16"},
                                              {amx_tile, "amx_tile"},
                                              {amx_bf16, "amx_bf16"},
                                              {amx_int8, "amx_int8"}};
  std::string text;
  for (const auto& [present, name] : all) {
    if (!present) continue;
    if (!text.empty()) text += ' ';
    text += name;
  }
  return text;
}

#if defined(__x86_64__)
namespace {

// Bits of XCR0: the register state that the operating system saves and restores.
constexpr uint64_t kXcr0Avx = 0x6;      // xmm, ymm
constexpr uint64_t kXcr0Avx512 = 0xe6;  // and opmask, the upper halves, zmm16-31

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(unsigned number, unsigned sub = 0) {
  Leaf out;  // stays zero where the processor has no such leaf
  __get_cpuid_count(number, sub, &out.eax, &out.ebx, &out.ecx, &out.edx);
  return out;
}

bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

uint64_t os_enabled_state() {
  if (!bit(leaf(1).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::string vendor_name() {
  const Leaf l = leaf(0);
  const unsigned words[] = {l.ebx, l.edx, l.ecx};
  return {reinterpret_cast<const char*>(words), sizeof words};
}

std::string model_name() {
  unsigned words[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Leaf l = leaf(0x80000002u + i);
    const unsigned part[] = {l.eax, l.ebx, l.ecx, l.edx};
    std::memcpy(words + size_t{4} * i, part, sizeof part);
  }
  const auto* text = reinterpret_cast<const char*>(words);
  std::string name(text, strnlen(text, sizeof words));
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

CpuFeatures detect_features() {
  const Leaf one = leaf(1), seven = leaf(7), seven_one = leaf(7, 1);
  const uint64_t state = os_enabled_state();
  const bool avx = (state & kXcr0Avx) == kXcr0Avx && bit(one.ecx, 28);
  const bool avx512 = avx && (state & kXcr0Avx512) == kXcr0Avx512 && bit(seven.ebx, 16);
  CpuFeatures f;
  f.vendor = vendor_name();
  f.model = model_name();
  f.avx2 = avx && bit(seven.ebx, 5);
  f.fma = avx && bit(one.ecx, 12);
  f.f16c = avx && bit(one.ecx, 29);
  f.avx512f = avx512;
  f.avx512dq = avx512 && bit(seven.ebx, 17);
  f.avx512bw = avx512 && bit(seven.ebx, 30);
  f.avx512vl = avx512 && bit(seven.ebx, 31);
  f.avx512_vnni = avx512 && bit(seven.ecx, 11);
  f.avx512_fp16 = avx512 && bit(seven.edx, 23);
  f.avx512_bf16 = avx512 && bit(seven_one.eax, 5);
  f.amx_tile = kernels::has_tiles();
  f.amx_bf16 = f.amx_tile && bit(seven.edx, 22);
  f.amx_int8 = f.amx_tile && bit(seven.edx, 25);
  return f;
}

}  // namespace
#else
namespace {
CpuFeatures detect_features() { return {}; }
}  // namespace
#endif

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect_features();
  return features;
}

}  // namespace kvasir
