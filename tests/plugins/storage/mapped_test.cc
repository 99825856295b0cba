// kvasir.dram over a mapped file: the same blocks, whose pages are the file's.
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir::test;

struct Mapped {
  explicit Mapped(const std::string& folder) : storage(host, "dram", {{"map_folder", folder}}) {}
  kvasir_lease acquire(uint32_t block, uint32_t mode) {
    const kvasir_block_key key = {{block + 1, 1}, 0, block, KVASIR_ALL_HEADS, 4, 0, nullptr};
    kvasir_lease lease{};
    status = storage->acquire(storage.self(), &key, 1, sizeof key, mode, &lease, sizeof lease,
                              storage.err());
    return lease;
  }
  FakeHost host{1};
  PluginInstance<kvasir_storage> storage;
  kvasir_status status = KVASIR_OK;
};

// The folder's mapping that holds `p`; empty when there is none.
bool lies_in(const void* p, const std::string& folder) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(p);
  for (std::string line; std::getline(maps, line);) {
    const uintptr_t begin = std::stoull(line, nullptr, 16);
    const uintptr_t end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    if (at >= begin && at < end) return line.find(folder + "/") != std::string::npos;
  }
  return false;
}

TEST_SUITE("plugins/storage/mapped") {
  TEST_CASE("blocks hold what is written, in pages of a file that nobody else sees") {
    const TempDir folder;
    {
      Mapped mapped(folder.root().string());
      mapped.storage.bind(small_geometry());
      for (uint32_t block = 0; block < 50; ++block) {
        const kvasir_lease lease = mapped.acquire(block, KVASIR_ACQUIRE_WRITE);
        REQUIRE(mapped.status == KVASIR_OK);
        CHECK(lies_in(lease.k, folder.root().string()));
        std::memset(lease.k, static_cast<int>(block), 16);
        std::memset(lease.v, static_cast<int>(block + 100), 16);
        mapped.storage->release(mapped.storage.self(), &lease.lease, 1);
      }
      for (uint32_t block = 0; block < 50; ++block) {
        const kvasir_lease lease = mapped.acquire(block, KVASIR_ACQUIRE_READ);
        REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
        CHECK(static_cast<const uint8_t*>(lease.k)[15] == block);
        CHECK(static_cast<const uint8_t*>(lease.v)[15] == block + 100);
        mapped.storage->release(mapped.storage.self(), &lease.lease, 1);
      }
      CHECK(folder.list().empty());
      kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
      const kvasir_geometry g = small_geometry();
      REQUIRE(mapped.storage->plan(mapped.storage.self(), &g, &plan, mapped.storage.err()) ==
              KVASIR_OK);
      CHECK(plan.n_tiers == 2);
      CHECK(plan.resident_bytes == 1);  // memory is the system's business; 0 would mean all
    }
  }

  TEST_CASE("a folder that takes no file is named") {
    Mapped mapped("/proc/kvasir-has-no-folder-here");
    kvasir_geometry g = small_geometry();
    CHECK(mapped.storage->base.bind(mapped.storage.self(), &g, mapped.storage.err()) ==
          KVASIR_ERR_IO);
    CHECK(mapped.storage.text().find("set map_folder to one that does") != std::string::npos);
  }

  TEST_CASE("a disk without space is an error of the block that asked, not a signal later") {
    const TempDir folder;
    Mapped mapped(folder.root().string());
    mapped.storage.bind(small_geometry());
    rlimit before{};
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const rlimit small = {1 << 20, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    mapped.acquire(0, KVASIR_ACQUIRE_WRITE);
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(mapped.status == KVASIR_ERR_OUT_OF_MEMORY);
    CHECK(mapped.storage.text().find(
              "the system refused 64 MiB more for blocks (File too large)") != std::string::npos);
    mapped.acquire(0, KVASIR_ACQUIRE_WRITE);
    CHECK(mapped.status == KVASIR_OK);
  }
}

}  // namespace
