// Copies in host memory of blocks that a device holds, for plugins that read the host's memory
// alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// In which format blocks of each of `formats` are copied: as they are where the host reaches them,
// else of the same element types, in host memory, K and V as [kv head][token].
std::vector<kvasir_kv_format> copied_formats(std::span<const kvasir_kv_format> formats,
                                             uint32_t block_size, uint32_t head_dim,
                                             uint32_t v_dim);

}  // namespace kvasir
