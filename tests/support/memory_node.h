// On which memory node a page lies, and whether this machine can place pages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <numa.h>
#include <numaif.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "core/platform/system_report.h"

namespace kvasir::test {

// Where the page of `p`, which was written, lies.
inline int node_at(void* p) {
  const auto page = reinterpret_cast<uintptr_t>(p) & ~(uintptr_t(sysconf(_SC_PAGESIZE)) - 1);
  void* pages[] = {reinterpret_cast<void*>(page)};
  int status = -EFAULT;
  // Linux 6.1 to 6.4 say EFAULT of a page that NUMA balancing watches, until somebody reads it.
  for (int i = 0; i < 100 && status == -EFAULT; ++i) {
    static_cast<void>(*static_cast<volatile const char*>(p));
    REQUIRE(move_pages(0, 1, pages, nullptr, &status, 0) == 0);
  }
  return status;
}

inline bool can_bind(int32_t node) {
  return numa_status().can_place && node <= numa_max_node() &&
         numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)) != 0;
}

}  // namespace kvasir::test
