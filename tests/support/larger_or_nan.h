// The largest difference, for tests that bound it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace kvasir::test {

// The larger of the two, or NaN if one of them is. std::max drops NaN, and a bound on what is left
// holds.
inline double larger_or_nan(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

}  // namespace kvasir::test
