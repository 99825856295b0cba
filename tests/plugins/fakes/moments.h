// Plugin extension test.moments/1: which step calls a selector received, when, and for whom.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

namespace kvasir::test {

inline constexpr const char* kMomentsExtension = "test.moments/1";

// Function, KVASIR_MOMENT_*, KVASIR_PHASE_*.
using Moments = std::set<std::tuple<std::string, uint32_t, uint32_t>>;

}  // namespace kvasir::test
