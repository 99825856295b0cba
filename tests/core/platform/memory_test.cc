// Region: alignment, zero fill, ownership, refusal; memory and cgroup figures from made-up trees.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/platform/bandwidth.h"
#include "core/platform/cgroup.h"
#include "core/platform/system_report.h"
#include "core/platform/thread_pool.h"
#include "tests/support/temp_dir.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

bool aligned(const Region& region, size_t alignment) {
  return reinterpret_cast<size_t>(region.data()) % alignment == 0;
}

// A folder that stands for "/".
struct FakeRoot : test::TempDir {
  FakeRoot() {
    write("proc/meminfo",
          "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   4194304 kB\n");
    write("proc/self/status", "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n");
  }
};

TEST_CASE("a region is zero-filled, writable to its last byte, aligned, of the size asked for") {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{4097},
                             size_t{2 * kMiB - 1}, size_t{2 * kMiB}, size_t{5 * kMiB + 17}}) {
    CAPTURE(bytes);
    const Region region(bytes);
    REQUIRE(region.data() != nullptr);
    CHECK(region.size() == bytes);
    CHECK(aligned(region, bytes >= 2 * kMiB ? 2 * kMiB : 64));
    CHECK(std::all_of(region.data(), region.data() + bytes,
                      [](std::byte b) { return b == std::byte{0}; }));
    std::memset(region.data(), 0xff, bytes);
    CHECK(region.as<uint32_t>().size() == bytes / 4);
    CHECK(region.node() == -1);
  }
}

TEST_CASE("an empty region holds nothing") {
  for (const Region& region : {Region(), Region(0), Region(0, 0)}) {
    CHECK(region.data() == nullptr);
    CHECK(region.size() == 0);
    CHECK(region.as<float>().empty());
  }
}

TEST_CASE("moving hands the memory over and leaves an empty region") {
  Region a(3 * kMiB);
  a.as<uint32_t>()[7] = 42;
  std::byte* const data = a.data();
  Region b(std::move(a));
  CHECK(a.data() == nullptr);
  CHECK(a.size() == 0);
  CHECK(b.data() == data);
  Region c(4096);
  c = std::move(b);
  CHECK(b.data() == nullptr);
  CHECK(c.data() == data);
  CHECK(c.size() == 3 * kMiB);
  CHECK(c.as<uint32_t>()[7] == 42);
  Region& same = c;
  c = std::move(same);
  CHECK(c.data() == data);
}

TEST_CASE("a destroyed region gives its memory back") {
  const uint64_t before = memory_info().resident_bytes;
  {
    const Region region(64 * kMiB);
    std::memset(region.data(), 1, region.size());
    CHECK(memory_info().resident_bytes >= before + 60 * kMiB);
  }
  CHECK(memory_info().resident_bytes < before + 30 * kMiB);
  CHECK(memory_info().peak_resident_bytes >= before + 60 * kMiB);
}

TEST_CASE("large regions report huge pages only where the kernel has them") {
  const HugePageStatus status = huge_page_status();
  const Region large(8 * kMiB), small(4096);
  CHECK(small.huge_pages() == HugePages::kNone);
  if (status.free_2mib == 0) {
    CHECK(large.huge_pages() ==
          (status.thp_enabled() ? HugePages::kTransparent : HugePages::kNone));
  }
}

TEST_CASE("a node that exists is honoured where placement is possible; one that does not, is not") {
  const Region first(4 * kMiB, 0), none(4 * kMiB, 4000);
  std::memset(first.data(), 1, first.size());
  std::memset(none.data(), 1, none.size());
  CHECK(first.node() == (numa_status().can_place ? 0 : -1));
  CHECK(none.node() == -1);
}

TEST_CASE("a size that cannot be had is a resource error naming it and what is available") {
  for (const size_t bytes : {size_t{1} << 50, SIZE_MAX, SIZE_MAX - 4096,
                             static_cast<size_t>(memory_info().total_bytes) + 1}) {
    CAPTURE(bytes);
    try {
      const Region region(bytes);
      FAIL("allocated");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kResource);
      const std::string text = error.what();
      CHECK(text.find(" GiB of memory") != std::string::npos);
      CHECK(text.find("available") != std::string::npos);
      if (bytes == size_t{1} << 50) CHECK(text.find("1048576.00 GiB") != std::string::npos);
    }
  }
}

TEST_CASE("memory figures of this process are consistent") {
  const MemoryInfo info = memory_info();
  CHECK(info.total_bytes > 0);
  CHECK(info.available_bytes > 0);
  CHECK(info.available_bytes <= info.total_bytes);
  CHECK(info.resident_bytes > 0);
  CHECK(info.resident_bytes <= info.peak_resident_bytes);
}

TEST_CASE("without control groups the machine's figures count") {
  const FakeRoot root;
  const MemoryInfo info = memory_info(root.root());
  CHECK(info.total_bytes == 8 * kGiB);
  CHECK(info.available_bytes == 4 * kGiB);
  CHECK(info.resident_bytes == 1 * kMiB);
  CHECK(info.peak_resident_bytes == 2 * kMiB);
}

TEST_CASE("version 2: the tightest group of the path counts, droppable page cache does not") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/memory.max", std::to_string(2 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/memory.current", std::to_string(1 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/memory.stat",
             "anon 5\ninactive_file " + std::to_string(512 * kMiB) + "\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  const MemoryInfo info = memory_info(root.root());
  CHECK(info.total_bytes == 2 * kGiB);
  CHECK(info.available_bytes == 1536 * kMiB);
  CHECK(cgroup_limits(root.root()).cpu_quota == doctest::Approx(1.5));
}

TEST_CASE("version 1: limits, the huge number that means none, the -1 that means no quota") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "7:cpu,cpuacct:/box\n4:memory:/box\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(memory_info(root.root()).total_bytes == 8 * kGiB);
  CHECK_FALSE(cgroup_limits(root.root()).cpu_quota.has_value());
  CHECK_FALSE(cgroup_limits(root.root()).memory_limit_bytes.has_value());

  root.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(3 * kGiB) + "\n");
  root.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", std::to_string(4 * kGiB) + "\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  const MemoryInfo info = memory_info(root.root());
  CHECK(info.total_bytes == 3 * kGiB);
  CHECK(info.available_bytes == 0);  // over the limit: nothing left, not a wrapped difference
  CHECK(cgroup_limits(root.root()).cpu_quota == doctest::Approx(0.5));
}

TEST_CASE("a group may forbid explicit huge pages, in both versions") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "3:hugetlb:/box\n0::/new\n");
  CHECK_FALSE(cgroup_limits(root.root()).huge_available_bytes.has_value());
  root.write("sys/fs/cgroup/hugetlb/box/hugetlb.2MB.limit_in_bytes", std::to_string(6 * kMiB));
  root.write("sys/fs/cgroup/hugetlb/box/hugetlb.2MB.usage_in_bytes", std::to_string(2 * kMiB));
  CHECK(cgroup_limits(root.root()).huge_available_bytes == 4 * kMiB);
  root.write("sys/fs/cgroup/new/hugetlb.2MB.max", "0\n");
  CHECK(cgroup_limits(root.root()).huge_available_bytes == 0);
}

TEST_CASE("a container that shows the host's path is served by the mount point") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/../../host/docker/abc\n");
  root.write("sys/fs/cgroup/memory.max", std::to_string(1 * kGiB) + "\n");
  root.write("sys/fs/cgroup/memory.current", "0\n");
  CHECK(memory_info(root.root()).total_bytes == 1 * kGiB);
}

TEST_CASE("a broken cgroup file is no limit and no crash") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "\n:\n0:\nnonsense\n0::relative\n4:memory:\n");
  root.write("sys/fs/cgroup/memory.max", "99999999999999999999999999\n");
  root.write("sys/fs/cgroup/cpu.max", "100 0\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "");
  CHECK(memory_info(root.root()).total_bytes == 8 * kGiB);
  CHECK_FALSE(cgroup_limits(root.root()).cpu_quota.has_value());
}

TEST_CASE("huge page status reads the kernel's bracketed choice and the pools") {
  const FakeRoot root;
  CHECK(huge_page_status(root.root()).thp_mode.empty());
  CHECK_FALSE(huge_page_status(root.root()).thp_enabled());
  const std::string mm = "sys/kernel/mm/";
  root.write(mm + "transparent_hugepage/enabled", "always [madvise] never\n");
  root.write(mm + "transparent_hugepage/defrag", "always defer defer+madvise madvise [never]\n");
  root.write(mm + "hugepages/hugepages-2048kB/nr_hugepages", "64\n");
  root.write(mm + "hugepages/hugepages-2048kB/free_hugepages", "60\n");
  root.write(mm + "hugepages/hugepages-2048kB/resv_hugepages", "10\n");
  root.write(mm + "hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
  const HugePageStatus status = huge_page_status(root.root());
  CHECK(status.thp_mode == "madvise");
  CHECK(status.thp_defrag == "never");
  CHECK(status.thp_enabled());
  CHECK(status.total_2mib == 64);
  CHECK(status.free_2mib == 60);
  CHECK(status.reserved_2mib == 10);
  CHECK(status.total_1gib == 2);
  CHECK(status.free_1gib == 0);
  root.write(mm + "transparent_hugepage/enabled", "always madvise [never]\n");
  CHECK_FALSE(huge_page_status(root.root()).thp_enabled());
}

TEST_CASE("the read bandwidth is finite, positive and within what any machine has") {
  ThreadPool pool(Topology::detect());
  const double bandwidth = measure_read_bandwidth(pool, 32 * kMiB, 3);
  CHECK(bandwidth > 1e7);
  CHECK(bandwidth < 1e14);
  CHECK_THROWS_AS(measure_read_bandwidth(pool, 64, 3), Error);
  CHECK_THROWS_AS(measure_read_bandwidth(pool, 32 * kMiB, 0), Error);
  CHECK_THROWS_AS(measure_read_bandwidth(pool, size_t{1} << 50, 1), Error);
  CHECK_THROWS_AS(Region(memory_info().available_bytes + (size_t{1} << 30)), Error);
}

TEST_CASE("a bandwidth meter reads all of its memory, in streams and in blocks") {
  ThreadPool pool(Topology::detect());
  BandwidthMeter meter(pool, 8 * kMiB);
  CHECK(meter.bytes() > 7 * kMiB);
  CHECK(meter.bytes() <= 8 * kMiB);
  CHECK(meter.read_streams() > 1e6);
  // Each pass checks the sum of what it read: a block left out or read twice would throw.
  for (const size_t block : {2048u, 4096u, 32768u, 65536u}) CHECK(meter.read_blocks(block) > 1e6);
  for (const size_t block : {size_t{0}, size_t{1024}, size_t{5000}, 16 * kMiB})
    CHECK_THROWS_AS(meter.read_blocks(block), Error);
}

}  // namespace
}  // namespace kvasir
