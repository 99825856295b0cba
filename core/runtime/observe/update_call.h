// One call of update(): blocks of a layer, handed to who keeps records of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/runtime/step/pass.h"
#include "core/runtime/step/run_context.h"

namespace kvasir {

// Tells `owner` the items, whose `seq` counts in pass.pieces; nothing for no items. A block that
// the owner cannot read where it lies comes as a copy in host memory. A fault is the
// owner's; it ends the pieces only where the strategy says on_fault = fail.
void send_update(const RunContext& context, const SlabOwner& owner, const Pass& pass,
                 uint32_t moment, std::vector<kvasir_update_item> items);

}  // namespace kvasir
