// What the operating system offers for memory placement, as `kvasir doctor` reports it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kvasir {

struct HugePageStatus {
  std::string thp_mode;    // "always", "madvise" or "never"; empty: the kernel has none
  std::string thp_defrag;  // what a fault does when no huge page is at hand; empty likewise
  uint64_t total_2mib = 0, free_2mib = 0, reserved_2mib = 0;  // the explicit pool, in pages
  uint64_t total_1gib = 0, free_1gib = 0;

  bool thp_enabled() const { return thp_mode == "always" || thp_mode == "madvise"; }
};
HugePageStatus huge_page_status(const std::filesystem::path& root = "/");

struct NumaStatus {
  bool available = false;  // the kernel's NUMA calls work for this process
  bool can_place = false;  // mbind is permitted (a container may forbid it)
  bool balancing = false;  // the kernel migrates pages by itself: costs faults while decoding
  uint32_t n_nodes = 1;    // with memory, configured on this machine
};
NumaStatus numa_status();

}  // namespace kvasir
