// kvasir.dram, and kvasir.gpu and gpu_tiered on the emulation (KVASIR_TEST_STORAGE): what is
// written is read, names and handles agree, misuse is refused with a text.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Storage = PluginInstance<kvasir_storage>;

#ifdef KVASIR_TEST_STORAGE
constexpr const char* kStorage = KVASIR_TEST_STORAGE;
constexpr bool kIsDram = false;
#else
constexpr const char* kStorage = "dram";
constexpr bool kIsDram = true;
#endif

kvasir_block_key key(uint64_t hash, uint32_t block, uint32_t layer = 0,
                     uint32_t kv_head = KVASIR_ALL_HEADS) {
  return {{hash, ~hash}, layer, block, kv_head, 0, 0, nullptr};
}
kvasir_block_key with_handle(kvasir_block_key k, uint64_t handle) {
  k.handle = handle;
  return k;
}

struct Dram {
  CompletingHost host;
  Storage storage;
  kvasir_geometry geometry;

  explicit Dram(const OptionValues& options = {}, kvasir_geometry g = small_geometry())
      : storage(host, kStorage, options), geometry(g) {
    storage.bind(geometry);
  }
  kvasir_status try_acquire(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                            std::vector<kvasir_lease>& out) {
    out.assign(keys.size(), {});
    return storage->acquire(storage.self(), keys.data(), static_cast<uint32_t>(keys.size()),
                            sizeof keys[0], mode, out.data(), sizeof out[0], storage.err());
  }
  kvasir_lease acquire(const kvasir_block_key& k, uint32_t mode) {
    std::vector<kvasir_lease> out;
    REQUIRE_MESSAGE(try_acquire({k}, mode, out) == KVASIR_OK, storage.text());
    return out[0];
  }
  kvasir_lease write(const kvasir_block_key& k) { return acquire(k, KVASIR_ACQUIRE_WRITE); }
  kvasir_lease read(const kvasir_block_key& k) { return acquire(k, KVASIR_ACQUIRE_READ); }
  void release(uint64_t lease) { storage->release(storage.self(), &lease, 1); }
  kvasir_status seal(const kvasir_block_key& k, kvasir_lease& lease) {
    return storage->seal(storage.self(), &k, 1, sizeof k, &lease, sizeof lease, storage.err());
  }
  kvasir_status drop(const kvasir_block_key& k, uint32_t mode = KVASIR_DROP_UNREF) {
    return storage->drop(storage.self(), &k, 1, sizeof k, mode, storage.err());
  }
  // A new block, released again; its handle.
  uint64_t make(const kvasir_block_key& k) {
    const kvasir_lease lease = write(k);
    release(lease.lease);
    return lease.handle;
  }
  kvasir_storage_plan plan() {
    kvasir_storage_plan out{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    REQUIRE(storage->plan(storage.self(), &geometry, &out, storage.err()) == KVASIR_OK);
    return out;
  }
};

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST_SUITE("plugins/storage") {
  TEST_CASE("blocks have the announced layout and do not overlap") {
    for (const auto& [type_k, type_v, k_bytes, v_bytes] :
         {std::tuple{"f16", "f16", 2u, 2u}, {"f32", "bf16", 4u, 2u}}) {
      kvasir_geometry geometry = small_geometry();
      geometry.head_dim = 5;  // nothing is a multiple of 64
      geometry.v_dim = 3;
      geometry.block_size = 7;
      Dram dram({{"type_k", type_k}, {"type_v", type_v}}, geometry);
      kvasir_kv_format format{};
      uint32_t n = 0;
      CHECK(dram.storage->formats(dram.storage.self(), &format, 0, &n, dram.storage.err()) ==
            KVASIR_ERR_CAPACITY);
      REQUIRE(dram.storage->formats(dram.storage.self(), &format, 1, &n, dram.storage.err()) ==
              KVASIR_OK);
      CHECK(n == 1);
      CHECK(format.k_token_stride == 5 * k_bytes);
      CHECK(format.v_token_stride == 3 * v_bytes);
      // V of a head lies behind its K in dram, V of all heads behind their K in device memory.
      const auto up64 = [](uint64_t bytes) { return (bytes + 63) / 64 * 64; };
      const uint64_t k_of_head = 7 * format.k_token_stride, v_of_head = 7 * format.v_token_stride;
      const uint64_t k_area = up64(kIsDram ? k_of_head : 2 * k_of_head);
      CHECK(format.k_head_stride == (kIsDram ? k_area + up64(v_of_head) : k_of_head));
      CHECK(format.v_head_stride == (kIsDram ? format.k_head_stride : v_of_head));

      std::vector<std::pair<uintptr_t, uintptr_t>> areas;
      for (uint32_t block = 0; block < 20; ++block) {
        const kvasir_lease lease = dram.write(key(1, block));
        REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
        const auto k = reinterpret_cast<uintptr_t>(lease.k),
                   v = reinterpret_cast<uintptr_t>(lease.v);
        CHECK(k % 64 == 0);
        CHECK(v == k + k_area);
        for (uint64_t head = 0; head < 2; ++head) {
          areas.emplace_back(k + head * format.k_head_stride,
                             k + head * format.k_head_stride + k_of_head);
          areas.emplace_back(v + head * format.v_head_stride,
                             v + head * format.v_head_stride + v_of_head);
        }
      }
      std::sort(areas.begin(), areas.end());
      for (size_t i = 1; i < areas.size(); ++i) CHECK(areas[i].first >= areas[i - 1].second);
    }
  }

  TEST_CASE("groups of 32 take 34 and 18 bytes and no head they do not divide") {
    kvasir_geometry geometry = small_geometry();
    geometry.head_dim = 96;
    geometry.v_dim = 64;
    Dram dram({{"type_k", "q8_0"}, {"type_v", "q4_0"}}, geometry);
    kvasir_kv_format format{};
    uint32_t n = 0;
    REQUIRE(dram.storage->formats(dram.storage.self(), &format, 1, &n, dram.storage.err()) ==
            KVASIR_OK);
    CHECK(format.dtype_k == KVASIR_DTYPE_Q8_0);
    CHECK(format.dtype_v == KVASIR_DTYPE_Q4_0);
    CHECK(format.k_token_stride == 3 * 34);
    CHECK(format.v_token_stride == 2 * 18);
    // 2 heads, 16 tokens; 64 times 25.5 of a head's keys
    CHECK(dram.plan().block_bytes == 2 * 16 * (3 * 34 + 2 * 18) + (kIsDram ? 2 * 32 : 0));

    geometry.head_dim = 80;
    const CompletingHost host;
    Storage other(host, kStorage, {{"type_k", "q8_0"}});
    kvasir_storage_plan out{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    CHECK(other->plan(other.self(), &geometry, &out, other.err()) == KVASIR_ERR_UNSUPPORTED);
    CHECK(other.text().find("head of this model has 80") != std::string::npos);
  }

  TEST_CASE("fp8 takes a byte each of any head" * doctest::skip(!kIsDram)) {
    kvasir_geometry geometry = small_geometry();
    geometry.head_dim = 80;
    geometry.v_dim = 64;
    Dram dram({{"type_k", "fp8_e4m3"}, {"type_v", "fp8_e4m3"}}, geometry);
    CHECK(dram.plan().block_bytes == 2 * 16 * (80 + 64));
  }

  TEST_CASE("the plan says what blocks really take" * doctest::skip(!kIsDram)) {
    kvasir_geometry geometry = small_geometry();
    geometry.head_dim = geometry.v_dim = 64;
    Dram dram({{"huge_pages", int64_t{0}}}, geometry);
    const uint64_t bytes = dram.plan().block_bytes;
    CHECK(bytes == 2 * 2 * 16 * 64 * 2);  // K and V, 2 heads, 16 tokens, 64 elements, f16
    const uint64_t before = resident_bytes();
    uintptr_t low = UINTPTR_MAX, high = 0;
    constexpr uint64_t kBlocks = 4096;  // 32 MiB, half of one mapping
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const kvasir_lease lease = dram.write(key(1, block));
      std::memset(lease.k, 1, bytes);  // K of the first head comes first
      low = std::min(low, reinterpret_cast<uintptr_t>(lease.k));
      high = std::max(high, reinterpret_cast<uintptr_t>(lease.k) + bytes);
    }
    CHECK(high - low == kBlocks * bytes);
    const auto grown = static_cast<double>(resident_bytes() - before);
    CHECK(grown >= 0.99 * static_cast<double>(kBlocks * bytes));
#if !defined(__SANITIZE_THREAD__)  // whose shadow memory counts as resident
    CHECK(grown <= static_cast<double>(kBlocks * bytes) + 8e6);  // tables and the allocator's slack
#endif
  }

  TEST_CASE("a block is found by handle and by hash, and stays where it is") {
    Dram dram;
    const kvasir_lease first = dram.write(key(1, 3));
    for (uint32_t block = 4; block < 3000; ++block) dram.make(key(1, block));
    for (const uint64_t handle : {uint64_t{0}, first.handle}) {
      const kvasir_lease again = dram.read(with_handle(key(1, 3), handle));
      CHECK(again.k == first.k);
      CHECK(again.v == first.v);
      CHECK(again.handle == first.handle);
      CHECK(again.lease != first.lease);
      dram.release(again.lease);
    }
  }

  TEST_CASE("a key it never had is marked, not created") {
    Dram dram;
    dram.make(key(1, 3));
    for (const auto& k : {key(2, 3), key(1, 4), key(1, 3, 1)}) {
      const kvasir_lease lease = dram.read(k);
      CHECK(lease.state == KVASIR_LEASE_FAILED);
      CHECK(lease.k == nullptr);
      CHECK(lease.v == nullptr);
      CHECK(lease.lease == 0);
      CHECK(dram.drop(k) == KVASIR_ERR_INVALID);
    }
  }

  TEST_CASE("sealing renames the block and keeps the lease readable") {
    Dram dram;
    kvasir_lease lease = dram.write(key(77, 0));
    const kvasir_lease before = lease;
    lease.n_tokens = 16;
    lease.pos_begin = 5;
    REQUIRE(dram.seal(key(1, 0), lease) == KVASIR_OK);
    CHECK(lease.k == before.k);
    CHECK(lease.handle == before.handle);
    CHECK(lease.n_tokens == 16);  // the host's fields
    CHECK(lease.pos_begin == 5);
    CHECK(dram.read(key(77, 0)).state == KVASIR_LEASE_FAILED);
    const kvasir_lease found = dram.read(key(1, 0));
    CHECK(found.k == before.k);
    CHECK(dram.seal(key(2, 0), lease) == KVASIR_ERR_INVALID);  // it is a lease for reading now
    CHECK(dram.storage.text().find("not a WRITE lease") != std::string::npos);
    const kvasir_lease reopened = dram.write(key(1, 0));
    CHECK(reopened.k == before.k);
  }

  TEST_CASE("blocks sealed under one name are one, and go with their last holder") {
    for (const bool in_one_call : {false, true}) {
      CAPTURE(in_one_call);
      Dram dram({{"max_bytes", int64_t{3 * 1024}}});
      std::vector<kvasir_lease> leases;
      for (uint64_t i = 0; i < 3; ++i) leases.push_back(dram.write(key(100 + i, 0)));
      void* const first = leases[0].k;
      std::memset(first, 7, 16);
      if (in_one_call) {
        const std::vector<kvasir_block_key> keys(3, key(1, 0));
        REQUIRE(dram.storage->seal(dram.storage.self(), keys.data(), 3, sizeof keys[0],
                                   leases.data(), sizeof leases[0],
                                   dram.storage.err()) == KVASIR_OK);
      } else {
        for (kvasir_lease& lease : leases) REQUIRE(dram.seal(key(1, 0), lease) == KVASIR_OK);
      }
      std::set<uint64_t> ids;
      for (const kvasir_lease& lease : leases) {
        CHECK(lease.k == first);
        CHECK(lease.handle == leases[0].handle);
        ids.insert(lease.lease);
      }
      CHECK(ids.size() == 3);  // a lease each
      CHECK(dram.read(key(101, 0)).state == KVASIR_LEASE_FAILED);
      // Two of three are free again: the memory takes two more, and not three.
      const uint64_t more[] = {dram.make(key(5, 1)), dram.make(key(6, 2))};
      std::vector<kvasir_lease> none;
      CHECK(dram.try_acquire({key(7, 3)}, KVASIR_ACQUIRE_WRITE, none) == KVASIR_ERR_OUT_OF_MEMORY);
      REQUIRE(dram.drop(with_handle(key(5, 1), more[0])) == KVASIR_OK);
      CHECK(dram.try_acquire({key(1, 0)}, KVASIR_ACQUIRE_WRITE, none) == KVASIR_ERR_INVALID);
      CHECK(dram.storage.text().find("write into a copy") != std::string::npos);
      for (size_t i = 0; i < 3; ++i) {
        CHECK(static_cast<const unsigned char*>(first)[15] == 7);
        if (i == 2) {  // the last holder, and a lease is out
          CHECK(dram.drop(with_handle(key(1, 0), leases[0].handle)) == KVASIR_ERR_INVALID);
          dram.release(leases[0].lease);
        } else {
          dram.release(leases[i + 1].lease);
        }
        REQUIRE(dram.drop(with_handle(key(1, 0), leases[0].handle)) == KVASIR_OK);
      }
      CHECK(dram.read(key(1, 0)).state == KVASIR_LEASE_FAILED);
      CHECK(dram.drop(with_handle(key(1, 0), leases[0].handle)) == KVASIR_ERR_INVALID);
    }
  }

  TEST_CASE("a block that others read while it is open is not given up for an equal one") {
    Dram dram;
    kvasir_lease first = dram.write(key(100, 0)), second = dram.write(key(101, 0));
    const kvasir_lease reader = dram.read(key(101, 0));
    REQUIRE(dram.seal(key(1, 0), first) == KVASIR_OK);
    REQUIRE(dram.seal(key(1, 0), second) == KVASIR_OK);
    CHECK(second.k == reader.k);
    CHECK(second.handle != first.handle);
    for (const uint64_t lease : {first.lease, second.lease, reader.lease}) dram.release(lease);
    REQUIRE(dram.drop(with_handle(key(1, 0), first.handle)) == KVASIR_OK);
    const kvasir_lease left = dram.read(key(1, 0));
    CHECK(left.handle == second.handle);
  }

  TEST_CASE("each holder of a shared block drops its heads for itself") {
    Dram dram;
    uint64_t handle = 0;
    for (uint64_t i = 0; i < 2; ++i) {
      kvasir_lease lease = dram.write(key(100 + i, 0));
      REQUIRE(dram.seal(key(1, 0), lease) == KVASIR_OK);
      dram.release(lease.lease);
      handle = lease.handle;
    }
    const auto drop = [&](uint32_t head) {
      return dram.drop(with_handle(key(1, 0, 0, head), handle));
    };
    CHECK(drop(0) == KVASIR_OK);
    CHECK(drop(0) == KVASIR_OK);  // the other holder
    CHECK(drop(0) == KVASIR_ERR_INVALID);
    CHECK(drop(1) == KVASIR_OK);
    kvasir_lease lease = dram.read(key(1, 0));
    CHECK(lease.state == KVASIR_LEASE_RESIDENT);
    CHECK(drop(1) == KVASIR_ERR_INVALID);  // the last head of the last holder, leased
    dram.release(lease.lease);
    CHECK(drop(1) == KVASIR_OK);
    CHECK(dram.read(key(1, 0)).state == KVASIR_LEASE_FAILED);
  }

  TEST_CASE("a key of one head is a slice of the block written for all") {
    Dram dram;
    kvasir_kv_format format{};
    uint32_t n = 0;
    REQUIRE(dram.storage->formats(dram.storage.self(), &format, 1, &n, dram.storage.err()) ==
            KVASIR_OK);
    const kvasir_lease whole = dram.write(key(1, 0));
    const kvasir_lease slice = dram.read(with_handle(key(1, 0, 0, 1), whole.handle));
    CHECK(static_cast<std::byte*>(slice.k) ==
          static_cast<std::byte*>(whole.k) + format.k_head_stride);
    CHECK(static_cast<std::byte*>(slice.v) ==
          static_cast<std::byte*>(whole.v) + format.v_head_stride);
    CHECK(slice.kv_head == 1);
    dram.release(slice.lease);
    dram.release(whole.lease);

    REQUIRE(dram.drop(key(1, 0, 0, 0)) == KVASIR_OK);
    CHECK(dram.drop(key(1, 0, 0, 0)) == KVASIR_ERR_INVALID);
    CHECK(dram.read(key(1, 0)).state == KVASIR_LEASE_RESIDENT);  // head 1 is still there
    CHECK(dram.drop(key(1, 0, 0, 1)) == KVASIR_ERR_INVALID);     // and leased
  }

  TEST_CASE("dropping the last head frees the block") {
    Dram dram;
    const uint64_t handle = dram.make(key(1, 0));
    REQUIRE(dram.drop(key(1, 0, 0, 1)) == KVASIR_OK);
    REQUIRE(dram.drop(key(1, 0, 0, 0)) == KVASIR_OK);
    CHECK(dram.read(key(1, 0)).state == KVASIR_LEASE_FAILED);
    CHECK(dram.drop(with_handle(key(1, 0), handle)) == KVASIR_ERR_INVALID);
  }

  TEST_CASE("blocks of one head are a size class of their own") {
    Dram dram;
    const kvasir_lease a = dram.write(key(1, 0, 0, 0)), b = dram.write(key(1, 0, 0, 1));
    CHECK(a.k != b.k);
    CHECK(static_cast<std::byte*>(a.v) - static_cast<std::byte*>(a.k) == 16 * 8 * 2);
    CHECK(dram.read(key(1, 0)).state == KVASIR_LEASE_FAILED);
  }

  TEST_CASE("misuse is refused with a text and changes nothing") {
    Dram dram;
    const kvasir_lease lease = dram.write(key(1, 0));
    std::vector<kvasir_lease> out;
    const auto refused = [&](kvasir_status status, const char* part) {
      CHECK(status == KVASIR_ERR_INVALID);
      CHECK_MESSAGE(dram.storage.text().find(part) != std::string::npos, dram.storage.text());
    };
    refused(dram.try_acquire({key(1, 0)}, KVASIR_ACQUIRE_WRITE, out), "WRITE lease is out");
    refused(dram.try_acquire({key(1, 0)}, 7, out), "mode 7");
    refused(dram.try_acquire({key(1, 0, 9)}, KVASIR_ACQUIRE_WRITE, out), "layer 9");
    refused(dram.try_acquire({key(1, 0, 0, 2)}, KVASIR_ACQUIRE_READ, out), "kv head 2");
    for (const uint64_t bad : {uint64_t{99}, ~uint64_t{0}, lease.handle + (uint64_t{1} << 32)}) {
      refused(dram.try_acquire({with_handle(key(1, 0), bad)}, KVASIR_ACQUIRE_READ, out),
              "names no block");
    }
    refused(dram.try_acquire({with_handle(key(2, 0), lease.handle)}, KVASIR_ACQUIRE_READ, out),
            "another key");
    refused(dram.drop(key(1, 0)), "release them first");
    refused(dram.drop(key(1, 0), 5), "mode 5");
    kvasir_lease forged = lease;
    forged.lease = 12345;
    refused(dram.seal(key(2, 0), forged), "not a WRITE lease");
    kvasir_lease elsewhere = lease;
    refused(dram.seal(key(2, 1), elsewhere), "the lease is on");
    dram.release(12345);
    dram.release(lease.lease);
    dram.release(lease.lease);
    CHECK(dram.host.lines().size() == 2);
    dram.release(0);  // nothing to release
    CHECK(dram.host.lines().size() == 2);
    REQUIRE(dram.drop(key(1, 0)) == KVASIR_OK);
    refused(dram.drop(key(1, 0)), "no such block");
    refused(dram.drop(with_handle(key(1, 0), lease.handle)), "dropped before");
  }

  TEST_CASE("an acquire that fails half way leaves nothing behind") {
    Dram dram({{"max_bytes", int64_t{3 * 1024}}});
    REQUIRE(dram.plan().block_bytes == 1024);
    const uint64_t first = dram.make(key(1, 0));
    std::vector<kvasir_lease> out;
    CHECK(dram.try_acquire({key(1, 0), key(1, 1), key(1, 2), key(1, 3)}, KVASIR_ACQUIRE_WRITE,
                           out) == KVASIR_ERR_OUT_OF_MEMORY);
    CHECK(dram.storage.text().find("max_bytes = 3072") != std::string::npos);
    for (uint32_t block = 1; block < 4; ++block) {
      CHECK(dram.read(key(1, block)).state == KVASIR_LEASE_FAILED);
    }
    REQUIRE(dram.drop(with_handle(key(1, 0), first)) == KVASIR_OK);  // not leased
    REQUIRE(dram.try_acquire({key(1, 1), key(1, 2), key(1, 3)}, KVASIR_ACQUIRE_WRITE, out) ==
            KVASIR_OK);
  }

  TEST_CASE("memory the system does not have is OUT_OF_MEMORY" * doctest::skip(!kIsDram)) {
    kvasir_geometry geometry = small_geometry();
    geometry.n_q_heads = geometry.n_kv_heads = 1u << 20;
    geometry.head_dim = geometry.v_dim = 1u << 16;
    geometry.block_size = 4096;  // 1 PiB a block: more than a process can address
    Dram dram({}, geometry);
    std::vector<kvasir_lease> out;
    CHECK(dram.try_acquire({key(1, 0)}, KVASIR_ACQUIRE_WRITE, out) == KVASIR_ERR_OUT_OF_MEMORY);
    CHECK(dram.storage.text().find("MiB") != std::string::npos);
  }

  TEST_CASE("under churn every block keeps its own content") {
    Dram dram;
    std::mt19937 random(3);
    struct Known {
      uint64_t handle, stamp;
    };
    std::map<uint32_t, Known> known;
    std::set<uint64_t> handles;
    const uint64_t bytes = dram.plan().block_bytes;  // K of the first head comes first
    const uint64_t of_head = bytes / 4;              // K or V of one of two heads
    for (uint64_t stamp = 1; stamp < 20000; ++stamp) {
      const auto block = static_cast<uint32_t>(random() % 200);
      const auto found = known.find(block);
      if (found == known.end()) {
        const kvasir_lease lease = dram.write(key(1, block));
        CHECK(handles.insert(lease.handle).second);  // a handle never comes again
        std::memset(lease.k, static_cast<int>(stamp % 251), bytes);
        std::memset(lease.v, static_cast<int>(stamp % 241), of_head);
        known[block] = {lease.handle, stamp};
        dram.release(lease.lease);
        continue;
      }
      const auto k = with_handle(key(1, block), random() % 2 ? found->second.handle : 0);
      const kvasir_lease lease = dram.read(k);
      const uint64_t want = found->second.stamp;
      CHECK(static_cast<uint8_t*>(lease.k)[of_head - 1] == want % 251);
      CHECK(static_cast<uint8_t*>(lease.k)[bytes - 1] == want % 251);
      CHECK(static_cast<uint8_t*>(lease.v)[0] == want % 241);
      dram.release(lease.lease);
      if (random() % 3 == 0) {
        REQUIRE(dram.drop(k) == KVASIR_OK);
        known.erase(found);
      }
    }
  }

  TEST_CASE("drop may come from another thread") {
    Dram dram;
    for (uint32_t block = 0; block < 500; ++block) dram.make(key(1, block));
    uint32_t refused = 0;
    std::thread other([&] {
      kvasir_err err{sizeof err, 0, {}};
      for (uint32_t block = 0; block < 500; ++block) {
        const kvasir_block_key k = key(1, block);
        refused += dram.storage->drop(dram.storage.self(), &k, 1, sizeof k, KVASIR_DROP_UNREF,
                                      &err) != KVASIR_OK;
      }
    });
    for (uint32_t block = 500; block < 1000; ++block) dram.make(key(1, block));
    other.join();
    CHECK(refused == 0);
    for (uint32_t block = 0; block < 1000; ++block) {
      CHECK((dram.read(key(1, block)).state == KVASIR_LEASE_RESIDENT) == (block >= 500));
    }
  }
}

}  // namespace
