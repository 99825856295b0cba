// Huge pages from /sys/kernel/mm, NUMA from libnuma and one trial placement.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/system_report.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/platform/proc_file.h"

namespace kvasir {
namespace {

// "always [madvise] never" -> "madvise"
std::string bracketed(const std::string& line) {
  const size_t open = line.find('[');
  const size_t close = line.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return line.substr(open + 1, close - open - 1);
}

bool placement_permitted() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const bool permitted = mbind(page, bytes, MPOL_LOCAL, nullptr, 0, 0) == 0;
  munmap(page, bytes);
  return permitted;
}

}  // namespace

HugePageStatus huge_page_status(const std::filesystem::path& root) {
  const auto mm = root / "sys/kernel/mm";
  const auto pool = [&](const char* size, const char* file) {
    return read_number(mm / "hugepages" / size / file).value_or(0);
  };
  HugePageStatus status;
  status.thp_mode = bracketed(read_line(mm / "transparent_hugepage/enabled"));
  status.thp_defrag = bracketed(read_line(mm / "transparent_hugepage/defrag"));
  status.total_2mib = pool("hugepages-2048kB", "nr_hugepages");
  status.free_2mib = pool("hugepages-2048kB", "free_hugepages");
  status.reserved_2mib = pool("hugepages-2048kB", "resv_hugepages");
  status.total_1gib = pool("hugepages-1048576kB", "nr_hugepages");
  status.free_1gib = pool("hugepages-1048576kB", "free_hugepages");
  return status;
}

NumaStatus numa_status() {
  NumaStatus status;
  status.available = numa_available() >= 0;
  if (!status.available) return status;
  status.can_place = placement_permitted();
  status.balancing = read_number("/proc/sys/kernel/numa_balancing").value_or(0) != 0;
  status.n_nodes = static_cast<uint32_t>(std::max(numa_num_configured_nodes(), 1));
  return status;
}

}  // namespace kvasir
