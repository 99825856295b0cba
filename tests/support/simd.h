// Runs a check once per SIMD target that this build has and this CPU supports; of an emulated CPU
// for the best one, since the others run on the CPU itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <hwy/highway.h>

#include <string>

#include "tests/support/effort.h"

namespace kvasir::test {

// Leaves the choice of target as it found it: the best one.
template <class Check>
void for_each_simd_target(const Check& check) {
  if (emulated()) return check();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    INFO("SIMD target: " << std::string(hwy::TargetName(target)));
    check();
    hwy::SetSupportedTargetsForTest(0);
  }
  hwy::GetChosenTarget().DeInit();
}

}  // namespace kvasir::test
