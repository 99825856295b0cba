// Region over mmap, madvise and mbind; the machine's memory from /proc and the control groups.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/memory.h"

#include <linux/mman.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/platform/cgroup.h"
#include "core/platform/proc_file.h"
#include "core/platform/system_report.h"

namespace kvasir {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::string gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

Error cannot_allocate(size_t bytes, const MemoryInfo& info, const std::string& why) {
  return {ErrorKind::kResource,
          "cannot allocate " + gib(bytes) + " of memory (" + why +
              "): " + gib(info.available_bytes) + " of " + gib(info.total_bytes) +
              " are available to this process; use a shorter context, a smaller KV type or a "
              "machine with more memory"};
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

struct Mapping {
  std::byte* data = nullptr;
  HugePages huge_pages = HugePages::kNone;
};

std::byte* map_anonymous(size_t bytes, int flags) {
  void* p =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// Maps one huge page more than needed and gives back what lies outside the aligned part.
std::byte* map_aligned(size_t bytes) {
  std::byte* raw = map_anonymous(bytes + kHugePage, 0);
  if (raw == nullptr) return nullptr;
  const size_t before =
      round_up(reinterpret_cast<size_t>(raw), kHugePage) - reinterpret_cast<size_t>(raw);
  if (before != 0) munmap(raw, before);
  munmap(raw + before + bytes, kHugePage - before);
  return raw + before;
}

// The kernel reserves the pages with the mapping, so that touching them does not fail later, unless
// the node has none left or a control group forbids them.
bool explicit_pool_has(size_t bytes, int node) {
  const HugePageStatus status = huge_page_status();
  uint64_t n_free = status.free_2mib - std::min(status.free_2mib, status.reserved_2mib);
  if (n_free < bytes / kHugePage) return false;
  if (node >= 0) {
    const std::string path = "/sys/devices/system/node/node" + std::to_string(node) +
                             "/hugepages/hugepages-2048kB/free_hugepages";
    n_free = std::min(n_free, read_number(path).value_or(n_free));
  }
  return n_free >= bytes / kHugePage &&
         cgroup_limits().huge_available_bytes.value_or(UINT64_MAX) >= bytes;
}

// A region below one huge page is a plain mapping. `bytes` is a multiple of the page size.
Mapping map_region(size_t bytes, size_t huge_bytes, int node) {
  if (bytes < kHugePage) return {map_anonymous(bytes, 0), HugePages::kNone};
  if (explicit_pool_has(huge_bytes, node)) {
    std::byte* data = map_anonymous(huge_bytes, MAP_HUGETLB | MAP_HUGE_2MB);
    if (data != nullptr) return {data, HugePages::kExplicit};
  }
  std::byte* data = map_aligned(bytes);
  if (data == nullptr) return {};
  const bool advised = madvise(data, bytes, MADV_HUGEPAGE) == 0;
  return {data,
          advised && huge_page_status().thp_enabled() ? HugePages::kTransparent : HugePages::kNone};
}

// Prefers the node, but falls back to another one when it is full: slower beats killed. False where
// there is no such node or the call is not allowed (containers without CAP_SYS_NICE).
bool place_on_node(std::byte* data, size_t bytes, int node) {
  if (numa_available() < 0 || node > numa_max_node()) return false;
  constexpr size_t kBits = sizeof(unsigned long) * 8;
  std::vector<unsigned long> mask(static_cast<size_t>(node) / kBits + 1, 0);
  mask.back() = 1ul << (static_cast<size_t>(node) % kBits);
  // The kernel reads one bit less than it is told.
  return mbind(data, bytes, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1, 0) == 0;
}

}  // namespace

Region::Region(size_t bytes, int node) {
  if (bytes == 0) return;
  const MemoryInfo info = memory_info();
  if (bytes > info.total_bytes) throw cannot_allocate(bytes, info, "more than there is");
  const size_t mapped = round_up(bytes, page_size());
  const Mapping mapping = map_region(mapped, round_up(bytes, kHugePage), node);
  if (mapping.data == nullptr) throw cannot_allocate(bytes, info, std::strerror(errno));
  // The system would grant it and end the process when it is touched. Explicit pages are set aside.
  if (bytes > info.available_bytes && mapping.huge_pages != HugePages::kExplicit) {
    munmap(mapping.data, mapped);
    throw cannot_allocate(bytes, info, "more than is left");
  }
  data_ = mapping.data;
  size_ = bytes;
  huge_pages_ = mapping.huge_pages;
  if (node >= 0 && place_on_node(data_, mapped_bytes(), node)) node_ = node;
}

size_t Region::mapped_bytes() const {
  return round_up(size_, huge_pages_ == HugePages::kExplicit ? kHugePage : page_size());
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, mapped_bytes());
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      huge_pages_(std::exchange(other.huge_pages_, HugePages::kNone)),
      node_(std::exchange(other.node_, -1)) {}

Region& Region::operator=(Region&& other) noexcept {
  Region taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(huge_pages_, taken.huge_pages_);
  std::swap(node_, taken.node_);
  return *this;
}

MemoryInfo memory_info(const std::filesystem::path& root) {
  const auto kib = [&](const char* file, const char* key) {
    const uint64_t n = read_key(root / file, key).value_or(0);
    return n > UINT64_MAX / 1024 ? UINT64_MAX : n * 1024;
  };
  MemoryInfo info{kib("proc/meminfo", "MemTotal"), kib("proc/meminfo", "MemAvailable"),
                  kib("proc/self/status", "VmRSS"), kib("proc/self/status", "VmHWM")};
  const CgroupLimits limits = cgroup_limits(root);
  info.total_bytes = std::min(info.total_bytes, limits.memory_limit_bytes.value_or(UINT64_MAX));
  info.available_bytes = std::min(
      {info.available_bytes, info.total_bytes, limits.memory_available_bytes.value_or(UINT64_MAX)});
  return info;
}

}  // namespace kvasir
