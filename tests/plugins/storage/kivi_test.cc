// kvasir.kivi: open blocks are exact, full ones are quantised once, rows come and go with leases.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "plugins/storage/kivi/groups.h"
#include "tests/support/heap_bytes.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using kvasir::kivi::RowShape;

constexpr uint32_t kHeads = 2, kBlock = 64, kDim = 64, kGroup = 32;

kvasir_geometry geometry() {
  kvasir_geometry g = small_geometry();
  g.block_size = kBlock;
  g.n_kv_heads = kHeads;
  g.head_dim = g.v_dim = kDim;
  return g;
}
kvasir_block_key key(uint64_t hash, uint32_t block = 0, uint32_t kv_head = KVASIR_ALL_HEADS) {
  return {{hash, ~hash}, 0, block, kv_head, kBlock, 0, nullptr};
}

struct Rows {
  std::vector<uint16_t> k, v;  // [kv_head][token][dim]
  bool operator==(const Rows&) const = default;
};
Rows random_rows(uint32_t seed, uint32_t n_heads = kHeads) {
  std::mt19937 random(seed);
  Rows out;
  for (auto* rows : {&out.k, &out.v})
    for (uint32_t i = 0; i < n_heads * kBlock * kDim; ++i)
      rows->push_back(static_cast<uint16_t>(0x3000 + random() % 0x1800 + (random() % 2 << 15)));
  return out;
}
// As the quantiser gives them, which has a test of its own.
Rows quantised(const Rows& rows, uint32_t k_bits, uint32_t v_bits) {
  Rows out = rows;
  kvasir::kivi::RowScratch scratch;
  for (size_t at = 0; at < rows.k.size(); at += kBlock * kDim)
    for (const bool is_k : {true, false}) {
      const RowShape s{kBlock, kDim, kGroup, is_k ? k_bits : v_bits, is_k};
      std::vector<std::byte> codes(s.bytes());
      uint16_t* const to = (is_k ? out.k : out.v).data() + at;
      kvasir::kivi::quantise(s, to, kDim, codes.data(), scratch);
      kvasir::kivi::expand(s, codes.data(), to, kDim, scratch);
    }
  return out;
}

struct Kivi {
  FakeHost host{2};
  PluginInstance<kvasir_storage> storage;

  explicit Kivi(const OptionValues& options = {}) : storage(host, "kivi", options) {
    storage.bind(geometry());
  }
  kvasir_lease acquire(const kvasir_block_key& name, uint32_t mode = KVASIR_ACQUIRE_READ) {
    kvasir_lease lease{};
    REQUIRE_MESSAGE(storage->acquire(storage.self(), &name, 1, sizeof name, mode, &lease,
                                     sizeof lease, storage.err()) == KVASIR_OK,
                    storage.text());
    return lease;
  }
  void release(const kvasir_lease& lease) { storage->release(storage.self(), &lease.lease, 1); }
  void seal(const kvasir_block_key& name, kvasir_lease& lease) {
    REQUIRE_MESSAGE(storage->seal(storage.self(), &name, 1, sizeof name, &lease, sizeof lease,
                                  storage.err()) == KVASIR_OK,
                    storage.text());
  }
  kvasir_status drop(const kvasir_block_key& name) {
    return storage->drop(storage.self(), &name, 1, sizeof name, KVASIR_DROP_UNREF, storage.err());
  }
  void write(const kvasir_lease& lease, const Rows& rows) {
    std::memcpy(lease.k, rows.k.data(), rows.k.size() * 2);
    std::memcpy(lease.v, rows.v.data(), rows.v.size() * 2);
  }
  Rows read(const kvasir_lease& lease, uint32_t n_heads = kHeads) {
    const auto *k = static_cast<const uint16_t*>(lease.k),
               *v = static_cast<const uint16_t*>(lease.v);
    const size_t n = n_heads * kBlock * kDim;
    return {{k, k + n}, {v, v + n}};
  }
  Rows read(const kvasir_block_key& name, uint32_t n_heads = kHeads) {
    const kvasir_lease lease = acquire(name);
    REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
    Rows out = read(lease, n_heads);
    release(lease);
    return out;
  }
  // Full, and let go.
  void store(const kvasir_block_key& name, const Rows& rows) {
    kvasir_lease lease = acquire(name, KVASIR_ACQUIRE_WRITE);
    write(lease, rows);
    seal(name, lease);
    release(lease);
  }
};

}  // namespace

TEST_SUITE("plugins/storage/kivi") {
  TEST_CASE("the residual is exact, full blocks are quantised: at R - 1, R, R + 1, G - 1 tokens") {
    const Rows first = random_rows(1), second = random_rows(2);
    for (const auto& [k_bits, v_bits] : {std::pair{2, 2}, {4, 4}, {4, 2}})
      for (const uint32_t n_tokens : {kGroup - 1, kBlock - 1, kBlock, kBlock + 1}) {
        Kivi t({{"k_bits", int64_t{k_bits}}, {"v_bits", int64_t{v_bits}}});
        for (uint32_t begin = 0, block = 0; begin < n_tokens; begin += kBlock, ++block) {
          kvasir_lease lease = t.acquire(key(block, block), KVASIR_ACQUIRE_WRITE);
          t.write(lease, block == 0 ? first : second);
          CHECK(lease.format == 0);
          if (n_tokens - begin >= kBlock) {
            t.seal(key(block, block), lease);
            CHECK(lease.format == 1);
            CHECK(t.read(lease) == quantised(first, k_bits, v_bits));  // still leased
          }
          t.release(lease);
        }
        const bool is_full = n_tokens >= kBlock;
        CHECK(t.read(key(0)) == (is_full ? quantised(first, k_bits, v_bits) : first));
        if (n_tokens > kBlock) CHECK(t.read(key(1, 1)) == second);
      }
  }

  TEST_CASE("rows are there while leased, for many blocks at a time, and change no more") {
    Kivi t;
    std::map<uint32_t, Rows> want;
    for (uint32_t block = 0; block < 30; ++block) {
      t.store(key(block, block), random_rows(block));
      want[block] = quantised(random_rows(block), 4, 4);
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<kvasir_lease> leases;
      for (uint32_t block = 0; block < 30; ++block) leases.push_back(t.acquire(key(block, block)));
      for (uint32_t block = 0; block < 30; ++block) CHECK(t.read(leases[block]) == want[block]);
      for (const kvasir_lease& lease : leases) t.release(lease);
    }
    // One head of a block of all: the second one begins behind the first.
    const kvasir_lease head = t.acquire(key(7, 7, 1));
    CHECK(std::memcmp(head.k, want[7].k.data() + kBlock * kDim, kBlock * kDim * 2) == 0);
    CHECK(std::memcmp(head.v, want[7].v.data() + kBlock * kDim, kBlock * kDim * 2) == 0);
    // Two leases on one block: the first release takes nothing away.
    const kvasir_lease other = t.acquire(key(7, 7));
    t.release(head);
    CHECK(t.read(other) == want[7]);
    t.release(other);
    CHECK(t.acquire(key(99)).state == KVASIR_LEASE_FAILED);
  }

  TEST_CASE("a block that is written again keeps what it had, and what stays is not lost twice") {
    Kivi t({{"k_bits", int64_t{2}}, {"v_bits", int64_t{2}}});
    const Rows rows = random_rows(4), once = quantised(rows, 2, 2);
    t.store(key(1), rows);
    kvasir_lease lease = t.acquire(key(1), KVASIR_ACQUIRE_WRITE);
    CHECK(t.read(lease) == once);
    t.seal(key(1), lease);
    CHECK(t.read(lease) == once);
    t.release(lease);
    // The second half is new: the first half's groups are as they were, those of V too.
    lease = t.acquire(key(1), KVASIR_ACQUIRE_WRITE);
    const Rows fresh = random_rows(5);
    Rows changed = once;
    for (uint32_t head = 0; head < kHeads; ++head)
      for (uint32_t i = kBlock / 2 * kDim; i < kBlock * kDim; ++i) {
        changed.k[head * kBlock * kDim + i] = fresh.k[i];
        changed.v[head * kBlock * kDim + i] = fresh.v[i];
      }
    t.write(lease, changed);
    t.seal(key(1), lease);
    t.release(lease);
    const Rows got = t.read(key(1));
    CHECK(got == quantised(changed, 2, 2));
    CHECK(std::equal(got.k.begin(), got.k.begin() + kBlock / 2 * kDim, once.k.begin()));
  }

  TEST_CASE("equal blocks are one, and go with their last holder") {
    Kivi t;
    const Rows rows = random_rows(6);
    t.store(key(1), rows);
    kvasir_lease lease = t.acquire(key(2), KVASIR_ACQUIRE_WRITE);
    t.write(lease, rows);
    t.seal(key(1), lease);  // named as the first
    CHECK(t.read(lease) == quantised(rows, 4, 4));
    t.release(lease);
    CHECK(t.drop(key(1)) == KVASIR_OK);
    CHECK(t.read(key(1)) == quantised(rows, 4, 4));
    CHECK(t.drop(key(1)) == KVASIR_OK);
    CHECK(t.acquire(key(1)).state == KVASIR_LEASE_FAILED);
  }

  TEST_CASE("blocks of one head are quantised alike") {
    Kivi t;
    const Rows rows = random_rows(8, 1);
    t.store(key(1, 0, 1), rows);
    CHECK(t.read(key(1, 0, 1), 1) == quantised(rows, 4, 4));
    CHECK(t.drop(key(1, 0, 1)) == KVASIR_OK);
  }

  TEST_CASE("memory: what the plan says of full blocks, and rows once for all that are leased") {
    Kivi t({{"k_bits", int64_t{2}}, {"v_bits", int64_t{2}}});
    const kvasir_geometry g = geometry();
    kvasir_storage_plan plan{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
    REQUIRE(t.storage->plan(t.storage.self(), &g, &plan, t.storage.err()) == KVASIR_OK);
    constexpr uint64_t kRows = uint64_t{2} * kHeads * kBlock * kDim * 2;  // f16
    CHECK(plan.block_bytes * 16 == kRows * 3);                            // 3 bits of 16
    CHECK(plan.n_tiers == 1);
    if (!counts_heap_bytes()) return;
    constexpr uint32_t kBlocks = 200;
    t.store(key(1000), random_rows(1));
    const size_t before = heap_bytes();
    for (uint32_t block = 0; block < kBlocks; ++block) t.store(key(block, block), random_rows(1));
    const auto per_block = static_cast<double>(heap_bytes() - before) / kBlocks;
    CHECK(per_block >= static_cast<double>(plan.block_bytes));
    CHECK(per_block <= static_cast<double>(plan.block_bytes) + 400);
  }

  TEST_CASE("what does not fit whole groups is refused, with what to do") {
    const auto refused = [](const OptionValues& options, const char* text) {
      const FakeHost host(1);
      const PluginInstance<kvasir_storage> plugin(host, "kivi", options);
      CHECK(plugin.status() == KVASIR_ERR_INVALID);
      CHECK(plugin.text().find(text) != std::string::npos);
    };
    refused({{"k_bits", int64_t{3}}}, "k_bits = 3: expected 2, 4");
    refused({{"group_size", int64_t{96}}}, "group_size = 96: expected 32, 64, 128");
    const FakeHost host(1);
    PluginInstance<kvasir_storage> plugin(host, "kivi");
    kvasir_geometry g = geometry();
    const auto unfit = [&](const char* text) {
      CHECK(plugin->base.validate(plugin.self(), &g, plugin.err()) == KVASIR_ERR_UNSUPPORTED);
      CHECK(plugin.text().find(text) != std::string::npos);
    };
    g.block_size = 48;
    unfit("block_size = 48 is not a multiple of group_size = 32: set block_size");
    g = geometry();
    g.v_dim = 80;
    unfit("a head of V = 80");
    g = geometry();
    g.head_dim = 6;
    unfit("6 channels");
  }
}
