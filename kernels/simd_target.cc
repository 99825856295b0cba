// Pins the dispatch of Highway's function tables.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/simd_target.h"

#include <hwy/highway.h>

namespace kvasir::kernels {
namespace {

constexpr int64_t kAvx512 = HWY_AVX3 | HWY_AVX3_DL;

int64_t real_targets() {
  hwy::SetSupportedTargetsForTest(0);  // drop an earlier pin
  return hwy::SupportedTargets();
}

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

}  // namespace kvasir::kernels
