// kvasir.tiered: who leaves memory, what comes back, and what happens when the file fails.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/plugins/storage/tiered_fixture.h"
#include "tests/support/effort.h"
#include "tests/support/heap_bytes.h"
#include "tests/support/readme.h"

namespace {
using namespace kvasir::test;

// While it lives, no file of this process grows beyond `bytes`.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit small = {bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

float first_float(uint32_t block) { return 100.0f * static_cast<float>(block); }

TEST_SUITE("plugins/storage/tiered") {
  TEST_CASE("the block used longest ago leaves; with fifo the one that came first") {
    for (const std::string strategy : {"lru", "fifo"}) {
      CAPTURE(strategy);
      Tiered t({{"cached_blocks", int64_t{2}}, {"cache_strategy", strategy}});
      t.store(0, 0.0f);
      t.store(1, 100.0f);
      t.settle(2, 1);
      CHECK(t.resident(0));
      t.store(2, 200.0f);
      CHECK(!t.resident(strategy == "lru" ? 1 : 0));
      CHECK(t.resident(strategy == "lru" ? 0 : 1));
      CHECK(t.resident(2));
    }
  }

  TEST_CASE("by counter the block that the fewest steps used leaves, however recently that was") {
    Tiered t({{"cached_blocks", int64_t{2}}, {"cache_strategy", std::string("counter")}});
    t.store(0, 0.0f);
    t.store(1, 100.0f);
    t.settle(2, 1);
    for (int step = 0; step < 3; ++step) CHECK(t.resident(0));
    CHECK(t.resident(1));  // used last
    t.store(2, 200.0f);    // counts as the next to leave does, and is younger
    t.settle(3, 2);
    t.store(3, 300.0f);
    t.settle(4, 3);
    for (const uint32_t block : {0u, 3u}) CHECK(t.resident(block));
    for (const uint32_t block : {1u, 2u}) CHECK(!t.resident(block));
  }

  TEST_CASE("a pool of no blocks keeps none between steps, and all come back") {
    Tiered t({{"cached_blocks", int64_t{0}}});
    for (uint32_t block = 0; block < 3; ++block) t.store(block, first_float(block));
    for (int i = 0; i < 5000 && t.resident(2); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (uint32_t block = 0; block < 3; ++block) CHECK(!t.resident(block));
    CHECK(t.fetch({0, 1, 2}, 1).status == KVASIR_OK);
    t.check_blocks({0, 1, 2}, first_float);
    CHECK(!t.resident(0));
    kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    const kvasir_geometry g = geometry();
    REQUIRE(t.plugin->plan(t.plugin.self(), &g, &plan, t.plugin.err()) == KVASIR_OK);
    CHECK(plan.resident_bytes == g.n_layers);  // 0 would mean all
  }

  TEST_CASE("a block that comes whole takes memory that another one has left, a part takes new") {
    Tiered t({{"cached_blocks", int64_t{0}}});
    for (uint32_t block = 0; block < 3; ++block) t.store(block, first_float(block));
    t.settle(3, 2);
    std::set<const void*> left;
    for (uint32_t round = 0; round < 20; ++round) {
      const uint32_t block = round % 3;
      CHECK(t.fetch({block}, 1 + round).status == KVASIR_OK);
      const kvasir_lease lease = t.acquire(block);
      if (round >= 3) CHECK(left.contains(lease.k));
      left.insert(lease.k);
      CHECK(static_cast<const float*>(lease.k)[0] == first_float(block));
      t.release(lease);
      REQUIRE(!t.resident(block));
    }
    CHECK(t.fetch_tokens(0, 0b1, 100) == KVASIR_OK);
    const kvasir_lease lease = t.acquire_tokens(0, 0b1);
    t.check_tokens(lease, 0b1, first_float(0));
    CHECK(!left.contains(lease.k));
    t.release(lease);
  }

  TEST_CASE("without read_ahead what is foreseen is not read, what is asked for is") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"read_ahead", int64_t{0}}});
    t.store(0, 5.0f);
    t.store(1, 9.0f);
    t.settle(2, 1);
    const kvasir_block_key name = Tiered::key(0);
    const kvasir_io_hint ahead = {sizeof ahead, 0};
    uint32_t accepted = 0;
    REQUIRE(t.plugin->prefetch(t.plugin.self(), &name, 1, sizeof name, &ahead, 7, &accepted,
                               t.plugin.err()) == KVASIR_OK);
    CHECK(accepted == 0);
    CHECK(t.count()[1].n_reads == 0);
    CHECK(t.fetch({0}, 8).status == KVASIR_OK);
    t.check_bytes(0, 5.0f);
  }

  TEST_CASE("what left comes back with its bytes, reported once, whole or a head of it") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 6; ++block)
      t.store(block, 1000.0f * static_cast<float>(block));
    t.settle(6, 5);
    for (uint32_t block = 0; block < 5; ++block) CHECK(!t.resident(block));
    const auto report = t.fetch({3, 0, 5}, 42);
    CHECK(report.times == 1);
    CHECK(report.status == KVASIR_OK);
    CHECK(report.blocks == std::vector<kvasir_status>{0, 0, 0});
    t.check_bytes(3, 3000.0f);
    CHECK(t.fetch({4}, 43).status == KVASIR_OK);
    const kvasir_lease slice = t.acquire(4, KVASIR_ACQUIRE_READ, 1);
    REQUIRE(slice.state == KVASIR_LEASE_RESIDENT);
    CHECK(static_cast<const float*>(slice.k)[0] == 4000.0f + kFloats / 2);
    t.store(7, 0.0f);  // would push it out
    t.store(8, 0.0f);
    t.settle(8, 8);
    CHECK(!t.resident(7));
    CHECK(static_cast<const float*>(slice.k)[0] == 4000.0f + kFloats / 2);  // leased: it stays
    t.release(slice);
    CHECK(!t.resident(4));
  }

  TEST_CASE("tokens come alone, add up to the block, and leave with it") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"gap_bytes", int64_t{0}}});
    for (uint32_t block = 0; block < 4; ++block) t.store(block, 100.0f * static_cast<float>(block));
    t.settle(4, 3);
    CHECK(t.acquire_tokens(1, 0b00010010).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.fetch_tokens(1, 0b00010010, 1) == KVASIR_OK);
    const kvasir_lease first = t.acquire_tokens(1, 0b00010010);
    REQUIRE(first.state == KVASIR_LEASE_PARTIAL);
    t.check_tokens(first, 0b00010010, 100.0f);
    CHECK(t.count()[1].bytes_read == 2 * kRecordBytes);
    CHECK(t.count()[0].bytes_written == 2 * kTokenBytes);
    CHECK(t.count()[1].tokens == 2);
    CHECK(t.count()[0].tokens == 2);
    // Others of the block, while it is leased: not there, and then beside the first ones.
    CHECK(t.acquire_tokens(1, 0b00010100).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.acquire(1).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.count()[1].tokens == 2 + 1 + 6);
    CHECK(t.fetch_tokens(1, 0b00010100, 2) == KVASIR_OK);
    CHECK(t.count()[1].bytes_read == 3 * kRecordBytes);  // one was there
    const kvasir_lease second = t.acquire_tokens(1, 0b00010110);
    REQUIRE(second.state == KVASIR_LEASE_PARTIAL);
    CHECK(second.k == first.k);
    t.check_tokens(second, 0b00010110, 100.0f);
    // A head of it, by its own bits.
    CHECK(t.acquire_tokens(1, 0b0011, 1).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.fetch_tokens(1, 0b1111, 3, 1) == KVASIR_OK);
    CHECK(t.count()[1].bytes_read == 6 * kRecordBytes);
    const kvasir_lease head = t.acquire(1, KVASIR_ACQUIRE_READ, 1);
    CHECK(head.state == KVASIR_LEASE_RESIDENT);
    CHECK(static_cast<const float*>(head.k)[31] == 100.0f + 63);
    // All of it.
    CHECK(t.fetch({1}, 4).status == KVASIR_OK);
    CHECK(t.count()[1].bytes_read == 8 * kRecordBytes);
    CHECK(t.acquire_tokens(1, 1).state == KVASIR_LEASE_RESIDENT);
    t.check_bytes(1, 100.0f);
    // What is partly there leaves as a whole and comes back.
    CHECK(t.fetch_tokens(2, 0b1, 5) == KVASIR_OK);
    const kvasir_lease third = t.acquire_tokens(2, 0b1);
    CHECK(third.state == KVASIR_LEASE_PARTIAL);
    t.release(third);
    CHECK(t.fetch({3}, 6).status == KVASIR_OK);
    t.release(t.acquire(3));
    CHECK(t.acquire_tokens(2, 0b1).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.fetch_tokens(2, 0b10000000, 7) == KVASIR_OK);
    t.check_tokens(t.acquire_tokens(2, 0b10000000), 0b10000000, 200.0f);
    CHECK(t.acquire_tokens(2, 0b1).state == KVASIR_LEASE_NOT_RESIDENT);
  }

  TEST_CASE("tokens that lie close come in one read, and what lies between is kept") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"gap_bytes", int64_t{kRecordBytes * 2}}});
    t.store(0, 7.0f);
    t.store(1, 0.0f);
    t.settle(2, 1);
    CHECK(t.fetch_tokens(0, 0b10010001, 1) == KVASIR_OK);  // gaps of three and two
    CHECK(t.count()[1].bytes_read == (1 + 4) * kRecordBytes);
    const kvasir_lease lease = t.acquire_tokens(0, 0b11110001);
    REQUIRE(lease.state == KVASIR_LEASE_PARTIAL);
    t.check_tokens(lease, 0b11110001, 7.0f);
    CHECK(t.fetch({0}, 2).status == KVASIR_OK);
    CHECK(t.count()[1].bytes_read == (1 + 4 + 3) * kRecordBytes);
    t.check_bytes(0, 7.0f);
  }

  TEST_CASE("a partly present block that is written again is whole") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    t.store(0, 7.0f);
    t.store(1, 0.0f);
    t.settle(2, 1);
    CHECK(t.fetch_tokens(0, 0b10, 1) == KVASIR_OK);
    const kvasir_lease lease = t.acquire(0, KVASIR_ACQUIRE_WRITE);
    t.check_tokens(lease, 0xff, 7.0f);
    t.release(lease);
    t.check_bytes(0, 7.0f);
  }

  TEST_CASE("a damaged token is found by who needs it, not by who reads past it") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 3; ++block) t.store(block, 7.0f);
    t.settle(3, 2);
    const int file = ::open(t.file().c_str(), O_RDWR);
    REQUIRE(file >= 0);
    const auto damage = [&](uint64_t at) {
      CHECK(::pwrite(file, "x", 1, static_cast<off_t>(at)) == 1);
    };
    damage(2 * kRecordBytes + 40);               // V of token 2, head 0
    damage(kFileBytes + 5 * kRecordBytes + 70);  // the checksum of token 1, head 1
    CHECK(t.fetch_tokens(0, 0b1010, 1) == KVASIR_OK);
    t.check_tokens(t.acquire_tokens(0, 0b1010), 0b1010, 7.0f);
    CHECK(t.acquire_tokens(0, 0b0100).state == KVASIR_LEASE_NOT_RESIDENT);
    CHECK(t.fetch_tokens(0, 0b0100, 2) == KVASIR_ERR_IO);
    CHECK(t.acquire_tokens(0, 0b0100).state == KVASIR_LEASE_FAILED);
    CHECK(t.fetch_tokens(1, 0b1111, 3) == KVASIR_OK);
    CHECK(t.fetch({1}, 4).status == KVASIR_ERR_IO);
    // A whole record of another token or of another block in its place.
    std::vector<char> record(kRecordBytes);
    const uint64_t third = 2 * kFileBytes;
    CHECK(::pread(file, record.data(), kRecordBytes, static_cast<off_t>(third)) == kRecordBytes);
    CHECK(::pwrite(file, record.data(), kRecordBytes, static_cast<off_t>(third + kRecordBytes)) ==
          kRecordBytes);
    ::close(file);
    t.store(3, 0.0f);
    t.settle(4, 3);
    CHECK(t.fetch_tokens(2, 0b01, 5) == KVASIR_OK);
    CHECK(t.fetch_tokens(2, 0b10, 6) == KVASIR_ERR_IO);
    REQUIRE(t.said().size() == 3);
    CHECK(t.said()[0].find("token 2 of kv head 0 changed") != std::string::npos);
    CHECK(t.said()[1].find("token 1 of kv head 1 changed") != std::string::npos);
  }

  TEST_CASE("the counters are what the process read and wrote") {
    Tiered t({{"cached_blocks", int64_t{1}}, {"io", std::string("thread")}});  // others count not
    const auto io = [](const std::string& name) {  // minus what reading it the last time took
      std::ifstream file("/proc/self/io");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const size_t at = text.find(name + ": ");
      return at == std::string::npos
                 ? std::pair<uint64_t, uint64_t>{}
                 : std::pair<uint64_t, uint64_t>{std::stoull(text.substr(at + name.size() + 2)),
                                                 text.size()};
    };
    [[maybe_unused]] const uint64_t wrote = io("wchar").first;
    if (io("rchar").second == 0 || emulated()) {  // an emulator's own counts as well
      MESSAGE("SKIPPED: the system does not count input and output of this test alone");
      return;
    }
    for (uint32_t block = 0; block < 20; ++block) t.store(block, 7.0f);
    t.settle(20, 19);
#if !defined(__SANITIZE_ADDRESS__)  // which looks at memory by writing it to a pipe
    CHECK(io("wchar").first - wrote == 20 * kFileBytes);
#endif
    CHECK(t.count()[1].bytes_written == 20 * kFileBytes);
    CHECK(t.count()[0].bytes_read == 20 * kBlockBytes);
    const auto [read, own] = io("rchar");
    const uint64_t counted = t.count()[1].bytes_read;
    for (uint32_t block = 0; block < 10; ++block)
      CHECK(t.fetch_tokens(block, 0x5a >> (block % 4) & 0xff, block + 1) == KVASIR_OK);
    CHECK(t.fetch({0, 3, 11, 12}, 100).status == KVASIR_OK);
    CHECK(io("rchar").first - read - own == t.count()[1].bytes_read - counted);
  }

  TEST_CASE("acquire with FETCH brings in what is missing, and says which blocks that were") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 4; ++block)
      t.store(block, 100.0f * static_cast<float>(block + 1));
    t.settle(4, 3);
    const uint64_t few = 0b00010010;  // head 0's token 1, head 1's token 0
    std::vector<kvasir_block_key> keys = {Tiered::key(0), Tiered::key(3), Tiered::key(1),
                                          Tiered::key(9)};
    keys[2].needed = &few;
    std::vector<kvasir_lease> leases(keys.size());
    const auto before = t.count();
    REQUIRE(t.plugin->acquire(t.plugin.self(), keys.data(), 4, sizeof keys[0], KVASIR_ACQUIRE_FETCH,
                              leases.data(), sizeof leases[0], t.plugin.err()) == KVASIR_OK);
    const uint32_t states[] = {KVASIR_LEASE_RESIDENT, KVASIR_LEASE_RESIDENT, KVASIR_LEASE_PARTIAL,
                               KVASIR_LEASE_FAILED};
    const uint32_t tiers[] = {1, 0, 1, 0};
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(leases[i].state == states[i]);
      CHECK(leases[i].tier == tiers[i]);
    }
    t.check_tokens(leases[0], 0xff, 100.0f);
    t.check_tokens(leases[1], 0xff, 400.0f);
    t.check_tokens(leases[2], few, 200.0f);
    CHECK(t.count()[1].tokens - before[1].tokens == 8 + 2);
    CHECK(t.count()[0].tokens - before[0].tokens == 8 + 8 + 2);
    for (const kvasir_lease& lease : leases)
      if (lease.lease) t.release(lease);
  }

  TEST_CASE("a block that is written again forgets what the file had") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    t.store(0, 1.0f);
    t.store(1, 2.0f);
    t.settle(2, 1);
    CHECK(!t.resident(0));
    kvasir_lease lease = t.acquire(0, KVASIR_ACQUIRE_WRITE);
    auto *k = static_cast<float*>(lease.k), *v = static_cast<float*>(lease.v);
    CHECK(k[63] == 64.0f);  // what is not written anew is there
    std::iota(k, k + kFloats, 500.0f);
    for (uint32_t i = 0; i < kFloats; ++i) v[i] = -k[i];
    t.seal(0, lease);
    t.release(lease);
    t.store(2, 3.0f);
    t.settle(3, 2);  // blocks go in order, and 0 to the place it had
    CHECK(!t.resident(0));
    CHECK(t.fetch({0}, 1).status == KVASIR_OK);
    t.check_bytes(0, 500.0f);
  }

  TEST_CASE("equal blocks are kept once, in memory and in the file") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    t.store(0, 5.0f);
    const auto seal_as_0 = [&](uint32_t temporary) {
      kvasir_block_key open = Tiered::key(0), sealed = Tiered::key(0);
      open.hash[1] = temporary;
      kvasir_lease lease{};
      REQUIRE(t.plugin->acquire(t.plugin.self(), &open, 1, sizeof open, KVASIR_ACQUIRE_WRITE,
                                &lease, sizeof lease, t.plugin.err()) == KVASIR_OK);
      auto *k = static_cast<float*>(lease.k), *v = static_cast<float*>(lease.v);
      std::iota(k, k + kFloats, 5.0f);
      for (uint32_t i = 0; i < kFloats; ++i) v[i] = -k[i];
      REQUIRE(t.plugin->seal(t.plugin.self(), &sealed, 1, sizeof sealed, &lease, sizeof lease,
                             t.plugin.err()) == KVASIR_OK);
      CHECK(static_cast<float*>(lease.k)[1] == 6.0f);
      t.release(lease);
      return lease.handle;
    };
    const kvasir_lease first = t.acquire(0);
    t.release(first);
    CHECK(seal_as_0(77) == first.handle);
    t.store(1, 9.0f);
    t.settle(2, 1);
    CHECK(std::filesystem::file_size(t.file()) == 2 * kFileBytes);
    CHECK(!t.resident(0));
    CHECK(seal_as_0(78) != first.handle);  // what has left memory stays away: both are kept
    for (int holder = 0; holder < 3; ++holder) CHECK(t.drop(0) == KVASIR_OK);
    CHECK(t.drop(0) == KVASIR_ERR_INVALID);
    CHECK(t.fetch({1}, 1).status == KVASIR_OK);
    t.check_bytes(1, 9.0f);
  }

  TEST_CASE("blocks that are dropped give their place in the file to others") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 5; ++block) t.store(block, 0.0f);
    t.settle(5, 4);
    for (uint32_t block = 0; block < 4; ++block) CHECK(t.drop(block) == KVASIR_OK);
    CHECK(t.drop(0) == KVASIR_ERR_INVALID);
    for (uint32_t block = 10; block < 14; ++block) t.store(block, 0.0f);
    t.store(20, 0.0f);
    t.settle(6, 20);
    CHECK(std::filesystem::file_size(t.file()) == 6 * kFileBytes);
  }

  TEST_CASE("what was read back for a step stays until the step's leases end") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 6; ++block) t.store(block, 0.0f);
    t.settle(6, 5);
    CHECK(t.fetch({0, 1, 2}, 1, 0).status == KVASIR_OK);  // foreseen
    CHECK(t.fetch({3, 4}, 2).status == KVASIR_OK);
    std::vector<kvasir_lease> leases;
    for (const uint32_t block : {0u, 1u, 3u, 4u}) {
      leases.push_back(t.acquire(block));
      CHECK(leases.back().state == KVASIR_LEASE_RESIDENT);
    }
    for (const kvasir_lease& lease : leases) t.release(lease);
    for (const uint32_t block : {0u, 1u, 2u, 3u}) CHECK(!t.resident(block));  // 2 came for nothing
    CHECK(t.resident(4));
  }

  TEST_CASE("dropped blocks free their memory at once") {
    Tiered t({{"cached_blocks", int64_t{1000}}}, 4096);  // 256 KB a block
    const auto resident_bytes = [] {
      std::ifstream statm("/proc/self/statm");
      uint64_t total = 0, resident = 0;
      statm >> total >> resident;
      return resident * 4096;
    };
    for (uint32_t block = 0; block < 128; ++block) t.fill(block);
    const uint64_t before = resident_bytes();
    for (uint32_t block = 0; block < 128; ++block) CHECK(t.drop(block) == KVASIR_OK);
    t.plugin->base.drain(t.plugin.self(), 1000, t.plugin.err());
    CHECK(resident_bytes() + (uint64_t{16} << 20) < before);
  }

  TEST_CASE("bytes that changed in the file, or are gone, are lost by name, not read") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 3; ++block) t.store(block, 1.0f);
    t.settle(3, 2);
    const int file = ::open(t.file().c_str(), O_RDWR);
    REQUIRE(file >= 0);
    CHECK(::pwrite(file, "x", 1, 100) == 1);
    CHECK(t.fetch({0}, 1).blocks == std::vector<kvasir_status>{KVASIR_ERR_IO});
    CHECK(t.acquire(0).state == KVASIR_LEASE_FAILED);
    REQUIRE(::ftruncate(file, kFileBytes) == 0);
    const auto report = t.fetch({1, 2}, 2);
    CHECK(report.status == KVASIR_ERR_IO);
    CHECK(report.blocks == std::vector<kvasir_status>{KVASIR_ERR_IO, KVASIR_OK});
    ::close(file);
    REQUIRE(t.said().size() == 2);
    CHECK(t.said()[0].find("block 0 of layer 0 could not be read back") != std::string::npos);
    kvasir_lease lease{};
    const kvasir_block_key name = Tiered::key(1);
    CHECK(t.plugin->acquire(t.plugin.self(), &name, 1, sizeof name, KVASIR_ACQUIRE_WRITE, &lease,
                            sizeof lease, t.plugin.err()) == KVASIR_ERR_IO);
    CHECK(t.plugin.text().find("lost before") != std::string::npos);
    CHECK(t.drop(1) == KVASIR_OK);
  }

  TEST_CASE("where the file takes no more, blocks stay in memory and nothing is lost") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    const SmallFiles limit(kFileBytes);
    for (uint32_t block = 0; block < 4; ++block) t.store(block, 10.0f * static_cast<float>(block));
    for (int i = 0; i < 1000 && t.said().empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(t.plugin->base.drain(t.plugin.self(), 1000, t.plugin.err()) == KVASIR_OK);
    CHECK(t.fetch({0, 1, 2, 3}, 5).status == KVASIR_OK);
    for (uint32_t block = 0; block < 4; ++block)
      t.check_bytes(block, 10.0f * static_cast<float>(block));
    REQUIRE(t.said().size() == 1);
    CHECK(t.said()[0].find("blocks stay in memory") != std::string::npos);
  }

  TEST_CASE("every ticket is reported once, cancelled ones and those at the end too") {
    Tiered t({{"cached_blocks", int64_t{1}}});
    for (uint32_t block = 0; block < 40; ++block) t.store(block, 1.0f);
    t.settle(40, 39);
    for (uint64_t ticket = 1; ticket <= 40; ++ticket) {
      const kvasir_block_key name = Tiered::key(static_cast<uint32_t>(ticket) - 1);
      const kvasir_io_hint hint = {sizeof hint, ticket % 2 ? 0u : 2u};
      uint32_t accepted = 0;
      REQUIRE(t.plugin->prefetch(t.plugin.self(), &name, 1, sizeof name, &hint, ticket, &accepted,
                                 t.plugin.err()) == KVASIR_OK);
      if (ticket % 3 == 0)
        CHECK(t.plugin->cancel(t.plugin.self(), ticket, t.plugin.err()) == KVASIR_OK);
    }
    CHECK(t.plugin->base.drain(t.plugin.self(), 0, t.plugin.err()) == KVASIR_OK);
    for (uint64_t ticket = 1; ticket <= 40; ++ticket) {
      const auto report = t.host.wait(ticket);
      CHECK(report.times == 1);
      CHECK((report.status == KVASIR_OK || report.status == KVASIR_ERR_CANCELLED));
    }
  }

  TEST_CASE("a host that takes no reports is refused") {
    const FakeHost host(1);
    const PluginInstance<kvasir_storage> plugin(host, "tiered");
    CHECK(plugin.status() == KVASIR_ERR_UNSUPPORTED);
    CHECK(plugin.text().find("kvasir.completion/1") != std::string::npos);
  }

  TEST_CASE("the plan counts what stays in memory") {
    Tiered t({{"cached_blocks", int64_t{3}}});
    const kvasir_geometry g = geometry();
    kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    REQUIRE(t.plugin->plan(t.plugin.self(), &g, &plan, t.plugin.err()) == KVASIR_OK);
    CHECK(plan.n_tiers == 2);
    CHECK(plan.block_bytes == kBlockBytes);
    CHECK(plan.resident_bytes == 3 * plan.block_bytes * g.n_layers);
  }

  TEST_CASE("dense layers keep all blocks where that is asked for, those that slide do not") {
    constexpr uint64_t kFirst[] = {0b01}, kSecond[] = {0b10};
    constexpr uint32_t kSlides[] = {8, 0};
    struct Case {
      const uint64_t* dense;
      const uint32_t* windows;
      bool keeps;
    };
    for (const Case& of : {Case{kFirst, nullptr, true}, Case{kSecond, nullptr, false},
                           Case{kFirst, kSlides, false}}) {
      kvasir_geometry g = geometry();
      g.dense_layers = of.dense;
      g.sliding_windows = of.windows;
      Tiered t({{"cached_blocks", int64_t{0}}, {"keep_dense_layers", int64_t{1}}}, g);
      for (uint32_t block = 0; block < 3; ++block) t.store(block, first_float(block));
      if (of.keeps)  // nothing is written meanwhile
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (uint32_t block = 0; block < 3; ++block) {
        for (int i = 0; i < 5000 && !of.keeps && t.resident(block); ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(t.resident(block) == of.keeps);
      }
      CHECK(t.count()[1].bytes_written == (of.keeps ? 0 : 3 * kFileBytes));
      kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
      REQUIRE(t.plugin->plan(t.plugin.self(), &g, &plan, t.plugin.err()) == KVASIR_OK);
      const uint64_t whole = g.max_context / g.block_size * g.max_sequences * kBlockBytes;
      CHECK(plan.resident_bytes == (of.windows ? 2 : whole + 1));
    }
  }

  TEST_CASE("tables take the bytes per block that the README says") {
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kBlocks = 2000;
    const auto per_block = [](size_t before) {
      return static_cast<double>(heap_bytes() - before) / kBlocks;
    };
    Tiered t({{"cached_blocks", int64_t{2}},
              {"io", std::string("thread")},  // few buffers beside the tables
              {"read_bytes", int64_t{4096}}});
    std::vector<kvasir_lease> held(kBlocks);
    t.store(0, 0);
    size_t before = heap_bytes();
    for (uint32_t i = 0; i < kBlocks; ++i) t.store(1 + i, 0);
    t.settle(1 + kBlocks, kBlocks);
    const double let_go = per_block(before);
    CHECK(let_go == doctest::Approx(228).epsilon(0.1));
    before = heap_bytes();
    for (uint32_t i = 0; i < kBlocks; ++i) {
      held[i] = t.acquire(1 + kBlocks + i, KVASIR_ACQUIRE_WRITE);
      t.seal(1 + kBlocks + i, held[i]);
    }
    t.settle(1 + 2 * kBlocks, kBlocks);
    const double leased = per_block(before);
    CHECK(leased == doctest::Approx(336).epsilon(0.1));
    for (const kvasir_lease& lease : held) t.release(lease);
    check_claim("storage/tiered", "0.2 KB of tables per block (0.3 KB of one that a step holds)");
    kvasir_geometry g = geometry();  // what `plan` counts lies between
    g.max_context = kBlocks * g.block_size;
    g.max_sequences = g.n_layers = 1;
    kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    REQUIRE(t.plugin->plan(t.plugin.self(), &g, &plan, t.plugin.err()) == KVASIR_OK);
    check_claim("storage/tiered", "8 MiB of full blocks that wait to be written");
    check_claim("storage/tiered", "as much as a layer has, 64 MiB at most");
    const uint64_t spare_bytes = kBlocks * kBlockBytes;
    const auto tables =
        static_cast<double>(plan.overhead_bytes - (8u << 20) - spare_bytes) / kBlocks;
    CHECK(tables > let_go);
    CHECK(tables < leased);
  }
}

}  // namespace
