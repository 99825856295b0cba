// mbind through libnuma.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/dram/memory_node.h"

#include <numa.h>
#include <numaif.h>

#include <cerrno>

namespace kvasir::dram {

int prefer_nodes(std::byte* data, uint64_t bytes, const std::vector<int32_t>& nodes) {
  if (nodes.empty()) return 0;
  if (numa_available() < 0) return ENOSYS;
  bitmask* mask = numa_allocate_nodemask();
  if (mask == nullptr) return ENOMEM;
  bool known = true;
  for (const int32_t node : nodes) {
    known &= node <= numa_max_node();
    if (known) numa_bitmask_setbit(mask, static_cast<unsigned>(node));
  }
  const int mode = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  int error = known ? 0 : EINVAL;
  // The kernel reads one bit less than it is told.
  if (known && mbind(data, bytes, mode, mask->maskp, mask->size + 1, 0) != 0) error = errno;
  numa_bitmask_free(mask);
  return error;
}

}  // namespace kvasir::dram
