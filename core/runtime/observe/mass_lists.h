// Attention mass in the lists that a selector asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/plugin/instance.h"
#include "core/runtime/attend/attend_stage.h"

namespace kvasir {

// Owns what a kvasir_mass points to.
struct MassLists {
  std::vector<uint64_t> offsets{0};  // [lists + 1]
  std::vector<uint32_t> index;       // tokens, or blocks with limits.mass_level = BLOCK
  std::vector<float> value;          // [index]
  uint32_t unit = 0;                 // KVASIR_UNIT_* of index
};

// mass [sequences][kv_head]. One list per sequence and head: heads and sums as limits.mass_reduce
// and limits.mass_level say.
MassLists mass_lists(const std::vector<std::vector<HeadMass>>& mass, const SelectorLimits& limits,
                     uint32_t group_size, uint32_t block_size);

}  // namespace kvasir
