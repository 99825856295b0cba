// Control groups, version 1 and 2: the group named in /proc/self/cgroup and all groups above it.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "core/platform/proc_file.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as the largest multiple of the page size below 2^63.
constexpr uint64_t kUnlimited = uint64_t{1} << 62;

template <class T>
void lower(std::optional<T>& value, T bound) {
  value = value ? std::min(*value, bound) : bound;
}

// The folders from the process's own group up to the mount point. Inside a container the path in
// /proc/self/cgroup may be the host's, of which only the mount point is visible.
std::vector<fs::path> group_folders(const fs::path& mount, const std::string& group) {
  std::vector<fs::path> folders;
  const fs::path relative = fs::path(group).relative_path().lexically_normal();
  for (fs::path below = relative; !below.empty() && below != ".." && below != ".";
       below = below.parent_path()) {
    if (*below.begin() == "..") break;
    folders.push_back(mount / below);
  }
  folders.push_back(mount);
  return folders;
}

void add_memory(const fs::path& folder, const char* limit_file, const char* usage_file,
                const char* reclaimable_key, CgroupLimits& limits) {
  const auto limit = read_number(folder / limit_file);
  if (!limit || *limit >= kUnlimited) return;
  lower(limits.memory_limit_bytes, *limit);
  const auto usage = read_number(folder / usage_file);
  if (!usage) return;
  // Page cache that nobody is using counts as used, but the kernel drops it on demand.
  const uint64_t reclaimable = read_key(folder / "memory.stat", reclaimable_key).value_or(0);
  const uint64_t held = *usage - std::min(*usage, reclaimable);
  lower(limits.memory_available_bytes, *limit - std::min(*limit, held));
}

void add_huge_pages(const fs::path& folder, const char* limit_file, const char* usage_file,
                    CgroupLimits& limits) {
  const auto limit = read_number(folder / limit_file);
  if (!limit || *limit >= kUnlimited) return;
  const uint64_t usage = read_number(folder / usage_file).value_or(0);
  lower(limits.huge_available_bytes, *limit - std::min(*limit, usage));
}

void add_cpu_quota(std::optional<uint64_t> quota_us, std::optional<uint64_t> period_us,
                   CgroupLimits& limits) {
  if (!quota_us || !period_us || *period_us == 0) return;
  lower(limits.cpu_quota, static_cast<double>(*quota_us) / static_cast<double>(*period_us));
}

void add_v2(const fs::path& mount, const std::string& group, CgroupLimits& limits) {
  for (const fs::path& folder : group_folders(mount, group)) {
    add_memory(folder, "memory.max", "memory.current", "inactive_file", limits);
    add_huge_pages(folder, "hugetlb.2MB.max", "hugetlb.2MB.current", limits);
    const std::string cpu_max = read_line(folder / "cpu.max");  // "150000 100000", "max 100000"
    const size_t space = cpu_max.find(' ');
    if (space == std::string::npos) continue;
    add_cpu_quota(parse_number(cpu_max.substr(0, space)), parse_number(cpu_max.substr(space + 1)),
                  limits);
  }
}

void add_v1(const fs::path& sys, const std::string& controllers, const std::string& group,
            CgroupLimits& limits) {
  const std::string list = "," + controllers + ",";
  if (list.find(",memory,") != std::string::npos) {
    for (const fs::path& folder : group_folders(sys / "memory", group)) {
      add_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                 limits);
    }
  }
  if (list.find(",hugetlb,") != std::string::npos) {
    for (const fs::path& folder : group_folders(sys / "hugetlb", group)) {
      add_huge_pages(folder, "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes", limits);
    }
  }
  if (list.find(",cpu,") != std::string::npos) {
    for (const char* mount : {"cpu", "cpu,cpuacct"}) {
      for (const fs::path& folder : group_folders(sys / mount, group)) {
        add_cpu_quota(read_number(folder / "cpu.cfs_quota_us"),  // -1, no number here: no quota
                      read_number(folder / "cpu.cfs_period_us"), limits);
      }
    }
  }
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path sys = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  // One line per hierarchy: id:controllers:path; version 2 has no controllers.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      add_v2(sys, group, limits);
      add_v2(sys / "unified", group, limits);
    } else {
      add_v1(sys, controllers, group, limits);
    }
  }
  return limits;
}

}  // namespace kvasir
