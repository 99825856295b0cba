// kvasir.tiered with several files: each keeps to its limit, what it has no space for goes on to
// the next one, and every block comes back.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <random>

#include "tests/plugins/storage/tiered_fixture.h"

namespace {
using namespace kvasir::test;

float first_of(uint32_t block) { return 100.0f * static_cast<float>(block); }

// Files that hold as many blocks as `limits` say; 0: any number. The first is the fixture's.
struct Chain {
  explicit Chain(const std::vector<uint64_t>& limits, OptionValues options = {})
      : n_files(static_cast<uint32_t>(limits.size())) {
    options.try_emplace("cached_blocks", int64_t{0});
    for (uint32_t i = 0; i < n_files; ++i) {
      const std::string key = i == 0 ? "folder" : "folder_" + std::to_string(i + 1);
      if (i != 0) options[key] = path(i);
      options[key + "_limit_bytes"] = static_cast<int64_t>(limits[i] * kFileBytes);
    }
    t = std::make_unique<Tiered>(options);
  }
  std::string path(uint32_t file) const {
    return file == 0 ? t->folder_path()
                     : std::filesystem::path(folders[file - 1].path("x")).parent_path().string();
  }
  // Blocks that a file has space for, as the system sees it.
  uint64_t length(uint32_t file) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry.path(), error).string();
      if (error || !target.starts_with(path(file) + "/")) continue;
      return std::filesystem::file_size(entry.path()) / kFileBytes;
    }
    return 0;
  }
  std::vector<kvasir_tier_count> count() {
    const auto* counters = static_cast<const kvasir_tier_counters*>(
        t->plugin->base.get_extension(t->plugin.self(), KVASIR_EXT_TIER_COUNTERS));
    std::vector<kvasir_tier_count> tiers(8);
    uint32_t n = 0;
    REQUIRE(counters->count(t->plugin.self(), tiers.data(), 8, sizeof tiers[0], &n,
                            t->plugin.err()) == KVASIR_OK);
    tiers.resize(n);
    return tiers;
  }
  void store(uint32_t block) {
    t->store(block, first_of(block));
    settle();
  }
  // Until all that was sealed is in a file.
  void settle() {
    const auto written = [&] { return count()[0].bytes_read >= t->n_sealed * kBlockBytes; };
    for (int i = 0; i < 5000 && !written(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(written());
  }
  // A block that is in memory may leave before it is leased, while others are written.
  void check_bytes(uint32_t block, uint64_t ticket) {
    for (int i = 0; i < 100; ++i) {
      REQUIRE(t->fetch({block}, ticket * 100 + static_cast<uint64_t>(i)).status == KVASIR_OK);
      const kvasir_lease lease = t->acquire(block);
      if (lease.state == KVASIR_LEASE_NOT_RESIDENT) continue;
      REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
      t->check_tokens(lease, 0xff, first_of(block));
      return t->release(lease);
    }
    FAIL("the block never stays");
  }
  // In which file a block is. It is read back and leaves again: as if a step used it.
  uint32_t file_of(uint32_t block) {
    kvasir_block_key name = Tiered::key(block);
    kvasir_lease lease{};
    REQUIRE(t->plugin->acquire(t->plugin.self(), &name, 1, sizeof name, KVASIR_ACQUIRE_FETCH,
                               &lease, sizeof lease, t->plugin.err()) == KVASIR_OK);
    REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
    REQUIRE(lease.tier >= 1);
    t->check_tokens(lease, 0xff, first_of(block));
    t->release(lease);
    return lease.tier - 1;
  }

  uint32_t n_files;
  TempDir folders[2];
  std::unique_ptr<Tiered> t;
};

std::vector<uint32_t> files_of(Chain& chain, uint32_t n_blocks) {
  std::vector<uint32_t> out;
  for (uint32_t block = 0; block < n_blocks; ++block) out.push_back(chain.file_of(block));
  return out;
}

kvasir_status write(Tiered& t, uint32_t block) {
  const kvasir_block_key name = Tiered::key(block);
  kvasir_lease lease{};
  return t.plugin->acquire(t.plugin.self(), &name, 1, sizeof name, KVASIR_ACQUIRE_WRITE, &lease,
                           sizeof lease, t.plugin.err());
}

}  // namespace

TEST_SUITE("plugins/storage/chain") {
  TEST_CASE("a full file gives its oldest blocks to the next one, and all come back") {
    Chain chain({4, 6, 0}, {{"cache_strategy", std::string("fifo")}});
    for (uint32_t block = 0; block < 30; ++block) chain.store(block);
    CHECK(chain.length(0) == 4);
    CHECK(chain.length(1) == 6);
    CHECK(chain.length(2) == 20);
    for (uint32_t block = 0; block < 30; ++block)
      CHECK(chain.file_of(block) == (block < 20 ? 2u : block < 26 ? 1u : 0u));
    const auto count = chain.count();
    REQUIRE(count.size() == 4);
    CHECK(std::string(count[1].name) == "file");
    CHECK(std::string(count[3].name) == "file_3");
    // Tokens that had to come from each, and every block was written once per file on its way.
    CHECK(count[1].tokens == 4 * 8);
    CHECK(count[2].tokens == 6 * 8);
    CHECK(count[3].tokens == 20 * 8);
    CHECK(count[1].bytes_written == 30 * kFileBytes);
    CHECK(count[2].bytes_written == 26 * kFileBytes);
    CHECK(count[3].bytes_written == 20 * kFileBytes);
    CHECK(count[1].bytes_read == (26 + 4) * kFileBytes);
    CHECK(count[3].bytes_read == 20 * kFileBytes);
    CHECK(count[3].n_reads == 20);
    CHECK(count[3].busy_nanos > 0);
    CHECK(chain.t->said().empty());
  }

  TEST_CASE("who goes on to the next file: used longest ago, came first, used by fewest steps") {
    for (const auto& [strategy, gone] :
         {std::pair<std::string, uint32_t>{"lru", 1}, {"fifo", 0}, {"counter", 2}}) {
      CAPTURE(strategy);
      Chain chain({4, 0}, {{"cache_strategy", strategy}});
      for (uint32_t block = 0; block < 4; ++block) chain.store(block);
      // Block 1 twice, 0, 3, then 2 once: 1 was used longest ago, and 2 by fewest steps.
      for (const uint32_t block : {1, 1, 3, 0, 2}) CHECK(chain.file_of(block) == 0);
      if (strategy == "counter")
        for (const uint32_t block : {0, 3}) CHECK(chain.file_of(block) == 0);
      chain.store(4);
      for (uint32_t block = 0; block < 5; ++block)
        CHECK(chain.file_of(block) == (block == gone ? 1u : 0u));
    }
  }

  TEST_CASE("when all files are full a new block is refused by name, and nothing is lost") {
    Chain chain({2, 3});
    for (uint32_t block = 0; block < 5; ++block) chain.store(block);
    CHECK(write(*chain.t, 5) == KVASIR_ERR_OUT_OF_MEMORY);
    for (const char* said : {"the files are full", "folder_limit_bytes", "folder_2_limit_bytes"})
      CHECK(chain.t->plugin.text().find(said) != std::string::npos);
    CHECK(files_of(chain, 5) == std::vector<uint32_t>{1, 1, 1, 0, 0});
    CHECK(chain.t->drop(3) == KVASIR_OK);
    chain.store(5);
    CHECK(chain.file_of(5) == 0);
    CHECK(chain.length(0) == 2);
    CHECK(chain.length(1) == 3);
    CHECK(chain.t->said().empty());
  }

  TEST_CASE("a block that is damaged when it is to go on is lost by name, and no other") {
    Chain chain({2, 0}, {{"cache_strategy", std::string("fifo")}});
    chain.store(0);
    chain.store(1);
    const int file = ::open(chain.t->file().c_str(), O_WRONLY);
    REQUIRE(::pwrite(file, "x", 1, 100) == 1);
    ::close(file);
    for (uint32_t block = 2; block < 5; ++block) chain.store(block);
    CHECK(chain.t->acquire(0).state == KVASIR_LEASE_FAILED);
    for (uint32_t block = 1; block < 5; ++block)
      CHECK(chain.file_of(block) == (block < 3 ? 1u : 0u));
    REQUIRE(chain.t->said().size() == 1);
    CHECK(chain.t->said()[0].find("block 0 of layer 0 could not be read back") !=
          std::string::npos);
    CHECK(chain.t->drop(0) == KVASIR_OK);
  }

  TEST_CASE("under churn every block keeps its bytes, and no file exceeds its limit") {
    for (const char* io : {"uring", "thread"}) {
      Chain chain({3, 5, 40}, {{"cached_blocks", int64_t{2}}, {"io", std::string(io)}});
      std::mt19937 random(11);
      std::vector<uint32_t> held;
      for (uint32_t step = 0; step < 1500; ++step) {
        if (held.size() < 40 && random() % 3 != 0) {
          chain.t->store(step, first_of(step));  // many are on their way at a time
          held.push_back(step);
        } else if (!held.empty() && random() % 2 == 0) {
          const size_t i = random() % held.size();
          CHECK(chain.t->drop(held[i]) == KVASIR_OK);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        } else if (!held.empty()) {
          const uint32_t block = held[random() % held.size()];
          chain.check_bytes(block, 1 + step);
        }
      }
      CHECK(chain.length(0) <= 3);
      CHECK(chain.length(1) <= 5);
      for (const uint32_t block : held) chain.check_bytes(block, 10000 + block);
      CHECK(chain.t->said().empty());
    }
  }

  TEST_CASE("a chain with a gap, or a file that is never reached, is refused") {
    const auto refused = [](const OptionValues& options, const char* text) {
      CompletingHost host;
      const PluginInstance<kvasir_storage> plugin(host, "tiered", options);
      CHECK(plugin.status() == KVASIR_ERR_INVALID);
      CHECK(plugin.text().find(text) != std::string::npos);
    };
    const std::string folder = "/tmp";
    refused({{"folder_2", folder}}, "folder_2 is never reached: set folder_limit_bytes");
    refused({{"folder_3", folder}, {"folder_limit_bytes", int64_t{1} << 20}},
            "folder_3 is set and folder_2 is not");
    refused({{"folder_2_limit_bytes", int64_t{1} << 20}}, "folder_2 is not: say where");
    Tiered small({{"folder_limit_bytes", static_cast<int64_t>(kFileBytes)}});  // one block
    CompletingHost host;
    PluginInstance<kvasir_storage> none(
        host, "tiered", {{"type_k", std::string("f32")}, {"folder_limit_bytes", int64_t{100}}});
    const kvasir_geometry g = geometry();
    CHECK(none->base.bind(none.self(), &g, none.err()) == KVASIR_ERR_INVALID);
    CHECK(none.text().find("less than one block") != std::string::npos);
  }

  TEST_CASE("the plan counts the files") {
    Chain chain({2, 0});
    const kvasir_geometry g = geometry();
    kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    REQUIRE(chain.t->plugin->plan(chain.t->plugin.self(), &g, &plan, chain.t->plugin.err()) ==
            KVASIR_OK);
    CHECK(plan.n_tiers == 3);
  }
}
