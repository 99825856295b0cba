// What a storage of several tiers moved, how many calls that took, and how much of their time no
// step waited for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/runtime/step/engagement.h"
#include "tools/kvasir/cli/print.h"

namespace kvasir::tool {

double per(double numerator, double denominator);  // 0 where that is 0
double megabytes(uint64_t bytes, double steps);    // per step

// Nothing where there is one tier.
void add_tiers(Json& out, const Engagement& e);
// Lines of text, per step.
std::string tiers_text(const Engagement& e, double steps);

}  // namespace kvasir::tool
