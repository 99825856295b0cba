// A maximum that keeps NaN.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <cmath>

namespace kvasir::sdk {

// The larger of the two, or NaN if one of them is. std::max drops NaN, and the host, which refuses
// scores that are not finite, would not see it.
inline float larger_or_nan(float a, float b) { return std::isnan(a) || a >= b ? a : b; }

}  // namespace kvasir::sdk
