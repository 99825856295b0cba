// Pins the dispatch of Highway's function tables; asks Linux for AMX tiles.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/simd_target.h"

#include <hwy/highway.h>

#include "kernels/cpu_vendor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvasir::kernels {
namespace {

constexpr int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;

int64_t real_targets() {
  hwy::SetSupportedTargetsForTest(0);  // drop an earlier pin
  return hwy::SupportedTargets();
}

#if defined(__x86_64__)
constexpr int kArchReqXcompPerm = 0x1023;  // asm/prctl.h, newer than Debian 12's oldest kernels
constexpr int kTileData = 18;

// Bit of edx of cpuid's leaf 7: 22 bf16 in tiles, 23 AVX512-FP16, 24 tiles.
bool cpu_has(int bit) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> bit & 1);
}

// Granted only where Linux saves the state of tiles.
bool ask_for_tiles() {
  return cpu_has(24) && syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}
#else
bool cpu_has(int) { return false; }
bool ask_for_tiles() { return false; }
#endif

}  // namespace

bool set_simd_target(std::string_view name) {
  const int64_t before = hwy::SupportedTargets();
  const int64_t real = real_targets();
  int64_t wanted = 0;
  if (name == "best") wanted = real;
  if (name == "avx512") wanted = real & kAvx512;
  if (name == "avx2") wanted = real & HWY_AVX2;
  const bool known = wanted != 0;
  if (!known) wanted = before;
  if (wanted != real) hwy::SetSupportedTargetsForTest(wanted);
  hwy::GetChosenTarget().DeInit();  // the next dispatch chooses again
  return known;
}

const char* simd_target_name() {
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);  // lower bit: better target
}

bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has;
}

bool uses_bf16_tiles() {
  static const bool has = has_tiles() && cpu_has(22);
  // Highway's library, which all plugins share, knows of a pin: AVX-512 alone, without AVX2.
  return has && (hwy::SupportedTargets() & HWY_AVX2);
}

bool bf16_is_faster() {
  static const bool has_slow_pairs = kIsIntel && cpu_has(23);
  return !has_slow_pairs || uses_bf16_tiles();
}

}  // namespace kvasir::kernels
