// Records of two strategies, put side by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tools/kvasir/ab/summary.h"

namespace kvasir::tool {

// Records of one task and length, ascending by sample and question.
using Records = std::vector<const AbRecord*>;

// Right and wrong, of the contexts that both answered.
ClusteredPairs pair(const Records& first, const Records& second, uint32_t n_questions);

// Of an arm or a rung against dense attention: pairs, and of several questions those of each and
// what is lost later; times, sample by sample.
void compare(AbCell& cell, const Records& dense, const Records& records, uint32_t n_questions);

}  // namespace kvasir::tool
