// Test cases that cannot run here, counted, so that a run of nothing else is no success.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvasir::test {

// What a test binary returns when every case that ran was skipped; ctest's SKIP_RETURN_CODE.
inline constexpr int kAllSkipped = 77;

// Called by the case, once, before it leaves.
void skip_case();

}  // namespace kvasir::test
