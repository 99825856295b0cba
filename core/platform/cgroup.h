// What the control groups around this process leave it: memory and CPU time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace kvasir {

struct CgroupLimits {
  std::optional<uint64_t> memory_limit_bytes;      // the tightest of the enclosing groups
  std::optional<uint64_t> memory_available_bytes;  // the least any of them has left
  // Of explicit 2 MiB pages, likewise. Beyond it a fault kills the process (SIGBUS), although mmap
  // succeeded; Kubernetes sets it to 0 for whoever did not ask.
  std::optional<uint64_t> huge_available_bytes;
  std::optional<double> cpu_quota;  // CPUs' worth of time; 1.5 = 150 ms per 100 ms
};

// Reads version 1, version 2 and mixed set-ups at their usual mount points below `root`/sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace kvasir
