// Binding of address ranges to memory nodes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::dram {

// Pages of the range not yet touched come from `nodes` (the operating system's numbers): from the
// one, or from each in turn. A full node gives way to another: slower beats killed. 0, or the errno
// of a system that refuses. data: a multiple of the page size.
int prefer_nodes(std::byte* data, uint64_t bytes, const std::vector<int32_t>& nodes);

}  // namespace kvasir::dram
