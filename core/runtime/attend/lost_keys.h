// Who is to blame for attention that is not finite: the backend, or the storage that gave it K and
// V. What was written there was finite (StepLoop).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/runtime/attend/part.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// The first of the keys that the part's ranges name whose K or V is not finite: "K of token 37, kv
// head 2"; or "". Looks into host memory only.
std::string find_lost_key(const RunContext& context, const Part& part);

}  // namespace kvasir
