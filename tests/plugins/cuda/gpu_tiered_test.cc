// kvasir.gpu_tiered: what leaves the device and comes back, from main memory or from the file,
// whole or the tokens that are needed; what travels ahead; and a device that is too small. On the
// emulation, where every access and every wait is checked, and on a device.
// SPDX-License-Identifier: Apache-2.0
#include <kvasir/ext/draft/block_heat.h>
#include <kvasir/ext/draft/tier_counters.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

// A block is four tokens of two kv heads, K and V of 8 floats each.
constexpr uint32_t kTokens = 4, kHeads = 2, kDim = 8, kFloats = kTokens * kHeads * kDim;
constexpr uint64_t kBlockBytes = 2 * kFloats * sizeof(float);
constexpr uint64_t kTokenBytes = 2 * kDim * sizeof(float);  // of one kv head
constexpr uint64_t kAllTokens = 0xff;

kvasir_block_key key(uint32_t block, uint32_t kv_head = KVASIR_ALL_HEADS) {
  return {{block + 100, 1}, 0, block, kv_head, kTokens, 0, nullptr};
}
float first_float(uint32_t block) { return 1000.0f * static_cast<float>(block + 1); }

struct Tiers {
  TempDir folder;
  CompletingHost host;
  PluginInstance<kvasir_storage> plugin;
  uint64_t n_tickets = 0;

  static OptionValues with_folder(OptionValues options, const TempDir& folder) {
    options["type_k"] = options["type_v"] = std::string("f32");
    options["folder"] = folder.path("");
    options.try_emplace("direct", int64_t{0});
    return options;
  }
  static kvasir_geometry geometry() {
    kvasir_geometry g = small_geometry();
    g.block_size = kTokens;
    g.n_kv_heads = kHeads;
    g.head_dim = g.v_dim = kDim;
    return g;
  }
  explicit Tiers(OptionValues options, const kvasir_geometry& bound = geometry())
      : plugin(host, KVASIR_TEST_STORAGE, with_folder(std::move(options), folder)) {
    plugin.bind(bound);
  }

  kvasir_status try_acquire(const std::vector<kvasir_block_key>& keys, uint32_t mode,
                            std::vector<kvasir_lease>& out) {
    out.assign(keys.size(), {});
    return plugin->acquire(plugin.self(), keys.data(), static_cast<uint32_t>(keys.size()),
                           sizeof keys[0], mode, out.data(), sizeof out[0], plugin.err());
  }
  std::vector<kvasir_lease> acquire(const std::vector<kvasir_block_key>& keys, uint32_t mode) {
    std::vector<kvasir_lease> out;
    REQUIRE_MESSAGE(try_acquire(keys, mode, out) == KVASIR_OK, plugin.text());
    return out;
  }
  kvasir_lease acquire(const kvasir_block_key& k, uint32_t mode) {
    return acquire(std::vector<kvasir_block_key>{k}, mode)[0];
  }
  kvasir_lease read(uint32_t block, const uint64_t* needed = nullptr,
                    uint32_t kv_head = KVASIR_ALL_HEADS) {
    kvasir_block_key k = key(block, kv_head);
    k.needed = needed;
    return acquire(k, KVASIR_ACQUIRE_READ);
  }
  kvasir_lease fetch(uint32_t block, const uint64_t* needed = nullptr,
                     uint32_t kv_head = KVASIR_ALL_HEADS) {
    kvasir_block_key k = key(block, kv_head);
    k.needed = needed;
    return acquire(k, KVASIR_ACQUIRE_FETCH);
  }
  void release(const kvasir_lease& lease) { plugin->release(plugin.self(), &lease.lease, 1); }
  void release(const std::vector<kvasir_lease>& leases) {
    std::vector<uint64_t> ids;
    for (const kvasir_lease& lease : leases) ids.push_back(lease.lease);
    plugin->release(plugin.self(), ids.data(), static_cast<uint32_t>(ids.size()));
  }
  kvasir_status seal(const kvasir_block_key& k, kvasir_lease& lease) {
    return plugin->seal(plugin.self(), &k, 1, sizeof k, &lease, sizeof lease, plugin.err());
  }
  kvasir_status drop(const kvasir_block_key& k) {
    return plugin->drop(plugin.self(), &k, 1, sizeof k, KVASIR_DROP_UNREF, plugin.err());
  }
  static uint64_t n_heads(const kvasir_lease& lease) {
    return lease.kv_head == KVASIR_ALL_HEADS ? kHeads : 1;
  }
  // K [kv head][token][dim] = first, first + 1 …, V the negatives.
  void fill(const kvasir_lease& lease, float first) {
    std::vector<float> values;  // as load_tokens() takes them
    for (uint64_t row = 0; row < n_heads(lease) * kTokens; ++row)
      for (const float sign : {1.0f, -1.0f})
        for (uint32_t d = 0; d < kDim; ++d)
          values.push_back(sign * (first + static_cast<float>(row * kDim + d)));
    const kvasir_token_span span = {&lease, 0, kTokens};
    REQUIRE_MESSAGE(plugin->load_tokens(plugin.self(), &span, 1, sizeof span, values.data(),
                                        values.size() * sizeof(float), plugin.err()) == KVASIR_OK,
                    plugin.text());
  }
  // Full, and let go.
  void store(uint32_t block, float first) {
    kvasir_lease lease = acquire(key(block), KVASIR_ACQUIRE_WRITE);
    fill(lease, first);
    REQUIRE_MESSAGE(seal(key(block), lease) == KVASIR_OK, plugin.text());
    release(lease);
  }
  void store_all(uint32_t n) {
    for (uint32_t block = 0; block < n; ++block) store(block, first_float(block));
    settle(n);
  }
  // Until n full blocks have gone down and as far as the file, and may have left the device.
  void settle(uint64_t n, uint64_t block_bytes = kBlockBytes) {
    const auto done = [&] {
      const auto tiers = count();
      return tiers[0].bytes_read >= n * block_bytes &&
             tiers[1].bytes_read - tiers[0].bytes_written >= n * block_bytes;
    };
    for (int i = 0; i < 5000 && !done(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(done());
    host.wait(prefetch({key(999)}, 2));  // which comes behind them
  }
  bool resident(uint32_t block) {
    const kvasir_lease lease = read(block);
    if (lease.lease) release(lease);
    return lease.state == KVASIR_LEASE_RESIDENT;
  }
  // tokens: of each kv head one after another.
  bool has_bytes(const kvasir_lease& lease, float first, uint64_t tokens = kAllTokens) {
    std::vector<float> values(n_heads(lease) * kTokens * 2 * kDim);
    const kvasir_token_span span = {&lease, 0, kTokens};
    REQUIRE_MESSAGE(plugin->save_tokens(plugin.self(), &span, 1, sizeof span, values.data(),
                                        values.size() * sizeof(float), plugin.err()) == KVASIR_OK,
                    plugin.text());
    for (uint32_t i = 0; i < values.size(); ++i) {
      const uint32_t row = i / (2 * kDim), in_row = i % (2 * kDim);
      if (!(tokens >> row & 1)) continue;
      const float sign = in_row < kDim ? 1.0f : -1.0f;
      if (values[i] != sign * (first + static_cast<float>(row * kDim + in_row % kDim)))
        return false;
    }
    return true;
  }
  uint64_t prefetch(const std::vector<kvasir_block_key>& keys, uint32_t priority) {
    const kvasir_io_hint hint = {sizeof hint, priority};
    uint32_t accepted = 0;
    REQUIRE(plugin->prefetch(plugin.self(), keys.data(), static_cast<uint32_t>(keys.size()),
                             sizeof keys[0], &hint, ++n_tickets, &accepted,
                             plugin.err()) == KVASIR_OK);
    CHECK(accepted == keys.size());
    return n_tickets;
  }
  std::string said() const {
    std::string all;
    for (const std::string& line : host.lines())
      if (line.find("the kernel gives no io_uring") == line.npos) all += line + "\n";
    return all;
  }
  std::vector<kvasir_tier_count> count() {
    const auto* counters = static_cast<const kvasir_tier_counters*>(
        plugin->base.get_extension(plugin.self(), KVASIR_EXT_TIER_COUNTERS));
    REQUIRE(counters);
    std::vector<kvasir_tier_count> tiers(3);
    uint32_t n = 0;
    REQUIRE(counters->count(plugin.self(), tiers.data(), 3, sizeof tiers[0], &n, plugin.err()) ==
            KVASIR_OK);
    REQUIRE(n == 3);
    return tiers;
  }
};

}  // namespace

TEST_SUITE("plugins/cuda/gpu_tiered") {
  TEST_CASE("blocks leave the device for main memory and the file, and come back from either") {
    const char* const names[] = {"device", "memory", "file"};
    const std::vector<kvasir_block_key> keys = {key(0), key(2), key(3), key(9)};
    const std::vector<uint32_t> wanted = {2, 1, 0};  // of 0 the file has the only copy
    std::vector<uint32_t> found;
    // A block leaves main memory when another thread has come so far.
    for (int round = 0; round < 50 && found != wanted; ++round) {
      Tiers t({{"device_blocks", int64_t{1}}, {"cached_blocks", int64_t{2}}});
      t.store_all(4);
      const auto before = t.count();
      for (int i = 0; i < 3; ++i) CHECK(std::string(before[i].name) == names[i]);
      for (const uint32_t block : {0u, 1u, 2u}) CHECK(!t.resident(block));
      const auto leases = t.acquire(keys, KVASIR_ACQUIRE_FETCH);
      found.clear();
      for (size_t i = 0; i < 3; ++i) {
        CHECK(leases[i].state == KVASIR_LEASE_RESIDENT);
        CHECK(t.has_bytes(leases[i], first_float(keys[i].block)));
        found.push_back(leases[i].tier);
      }
      CHECK(leases[3].state == KVASIR_LEASE_FAILED);
      const auto after = t.count();
      CHECK(after[0].bytes_written - before[0].bytes_written == 2 * kBlockBytes);
      CHECK(after[0].tokens - before[0].tokens == 3 * 8);
      CHECK(after[1].n_reads - before[1].n_reads == 2);
      CHECK(after[1].busy_nanos > before[1].busy_nanos);
      const uint64_t from_file = after[2].tokens - before[2].tokens;
      CHECK(from_file == (found == wanted ? 8 : 0));
      CHECK(after[1].tokens - before[1].tokens == 2 * 8 - from_file);
      t.release(leases);
      t.release(t.fetch(0));
      for (const uint32_t block : {1u, 2u, 3u}) CHECK(!t.resident(block));
      CHECK(t.resident(0));  // used last
    }
    CHECK(found == wanted);
  }

  TEST_CASE("the plan counts the device's blocks, and main memory as what is fixed") {
    const kvasir_geometry g = Tiers::geometry();
    const auto plan = [&](int64_t device_blocks, int64_t cached_blocks) {
      Tiers t({{"device_blocks", device_blocks}, {"cached_blocks", cached_blocks}});
      kvasir_storage_plan out{sizeof(kvasir_storage_plan), 0, 0, 0, 0};
      REQUIRE(t.plugin->plan(t.plugin.self(), &g, &out, t.plugin.err()) == KVASIR_OK);
      return out;
    };
    const kvasir_storage_plan some = plan(3, 5), more = plan(3, 9);
    CHECK(some.n_tiers == 3);
    CHECK(some.block_bytes == kBlockBytes);
    CHECK(some.resident_bytes == 3 * kBlockBytes * g.n_layers);
    CHECK(more.resident_bytes == some.resident_bytes);
    CHECK(more.overhead_bytes - some.overhead_bytes == 4 * kBlockBytes * g.n_layers);
    CHECK(plan(0, 5).resident_bytes == g.n_layers);  // 0 would mean all
  }

  TEST_CASE("tokens come alone, add up to the block, and leave with it") {
    Tiers t({{"device_blocks", int64_t{1}}, {"cached_blocks", int64_t{0}}});
    t.store_all(3);
    const uint64_t few = 0b00010010, others = 0b00010100, all_of_head = 0b1111, rest = kAllTokens;
    const uint64_t before = t.count()[0].bytes_written;
    const auto came = [&] { return (t.count()[0].bytes_written - before) / kTokenBytes; };
    CHECK(t.read(0, &few).state == KVASIR_LEASE_NOT_RESIDENT);
    const kvasir_lease first = t.fetch(0, &few);
    REQUIRE(first.state == KVASIR_LEASE_PARTIAL);
    CHECK(t.has_bytes(first, first_float(0), few));
    CHECK(came() == 2);
    // While it is leased others come beside the first ones, and what is there stays.
    CHECK(t.read(0, &others).state == KVASIR_LEASE_NOT_RESIDENT);
    const kvasir_lease second = t.fetch(0, &others);
    CHECK(second.k == first.k);
    CHECK(t.has_bytes(second, first_float(0), few | others));
    CHECK(came() == 3);
    const kvasir_lease head = t.fetch(0, &all_of_head, 1);
    CHECK(head.state == KVASIR_LEASE_RESIDENT);
    CHECK(t.has_bytes(head, first_float(0) + 32, all_of_head));  // of the second head
    CHECK(came() == 6);
    const kvasir_lease whole = t.fetch(0, &rest);
    CHECK(whole.state == KVASIR_LEASE_RESIDENT);
    CHECK(t.has_bytes(whole, first_float(0)));
    CHECK(came() == 8);
    t.release({first, second, head, whole});
    t.release(t.fetch(1));
    CHECK(t.read(0, &few).state == KVASIR_LEASE_NOT_RESIDENT);
  }

  TEST_CASE("tokens of blocks that are larger than what travels at once come together") {
    constexpr uint32_t kLarge = 256, kBlocks = 6;  // of 1 MiB; 4 MiB travel at once
    constexpr uint64_t kLargeFloats = uint64_t{2} * kHeads * kLarge * kLarge;
    kvasir_geometry geometry = Tiers::geometry();
    geometry.block_size = geometry.head_dim = geometry.v_dim = kLarge;
    Tiers tiers({{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{kBlocks}}}, geometry);
    std::vector<kvasir_block_key> keys;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      kvasir_block_key& k = keys.emplace_back(key(block));
      k.n_tokens = kLarge;
      kvasir_lease lease = tiers.acquire(k, KVASIR_ACQUIRE_WRITE);
      const std::vector<float> values(kLargeFloats, first_float(block));
      const kvasir_token_span span = {&lease, 0, kLarge};
      REQUIRE(tiers.plugin->load_tokens(tiers.plugin.self(), &span, 1, sizeof span, values.data(),
                                        values.size() * sizeof(float),
                                        tiers.plugin.err()) == KVASIR_OK);
      REQUIRE_MESSAGE(tiers.seal(k, lease) == KVASIR_OK, tiers.plugin.text());
      tiers.release(lease);
    }
    tiers.settle(kBlocks, kLargeFloats * sizeof(float));
    uint64_t needed[kHeads * kLarge / 64] = {1};
    for (kvasir_block_key& k : keys) k.needed = needed;
    const auto before = tiers.count();
    tiers.release(tiers.acquire(keys, KVASIR_ACQUIRE_FETCH));
    const auto after = tiers.count();
    CHECK(after[1].n_reads - before[1].n_reads == 1);
    CHECK(after[0].bytes_written - before[0].bytes_written == kBlocks * 2 * kLarge * sizeof(float));
  }

  TEST_CASE("several sequences ask for parts of one block in one call") {
    Tiers t({{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{0}}});
    t.store_all(1);
    for (int i = 0; i < 2000 && t.resident(0); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const uint64_t a = 0b0011, b = 0b0110, c = kAllTokens;
    std::vector<kvasir_block_key> keys(3, key(0));
    keys[0].needed = &a;
    keys[1].needed = &b;
    keys[2].needed = &c;
    const auto leases = t.acquire(keys, KVASIR_ACQUIRE_FETCH);
    for (const kvasir_lease& lease : leases) CHECK(t.has_bytes(lease, first_float(0)));
    CHECK(t.count()[0].bytes_written == kBlockBytes);
    t.release(leases);
  }

  TEST_CASE("what travels ahead is there when it is reported, and counts as asked for by nobody") {
    Tiers t({{"device_blocks", int64_t{1}}, {"cached_blocks", int64_t{1}}});
    t.store_all(4);
    const auto before = t.count();
    const uint64_t ticket = t.prefetch({key(0), key(1), key(7)}, 0);
    const auto report = t.host.wait(ticket);
    CHECK(report.times == 1);
    CHECK(report.blocks == std::vector<kvasir_status>{0, 0, KVASIR_ERR_IO});
    for (const uint32_t block : {0u, 1u}) {
      const kvasir_lease lease = t.read(block);  // beyond the limit, until the step ends
      REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
      CHECK(t.has_bytes(lease, first_float(block)));
    }
    const auto after = t.count();
    CHECK(after[0].bytes_written - before[0].bytes_written == 2 * kBlockBytes);
    CHECK(after[1].tokens == before[1].tokens);
    CHECK(after[2].tokens == before[2].tokens);
  }

  TEST_CASE("without read_ahead what is foreseen does not travel") {
    Tiers t({{"device_blocks", int64_t{0}}, {"read_ahead", int64_t{0}}});
    t.store_all(1);
    const kvasir_block_key k = key(0);
    const kvasir_io_hint ahead = {sizeof ahead, 0};
    uint32_t accepted = 0;
    REQUIRE(t.plugin->prefetch(t.plugin.self(), &k, 1, sizeof k, &ahead, 7, &accepted,
                               t.plugin.err()) == KVASIR_OK);
    CHECK(accepted == 0);
    CHECK(t.host.wait(t.prefetch({k}, 2)).status == KVASIR_OK);
    CHECK(t.has_bytes(t.read(0), first_float(0)));
  }

  // The thread that carries them is in the midst of it.
  TEST_CASE("who reads while blocks travel finds all of a token or is told that it is not there") {
    Tiers t({{"device_blocks", int64_t{2}}, {"cached_blocks", int64_t{3}}});
    constexpr uint32_t kBlocks = 8;
    t.store_all(kBlocks);
    uint32_t n_there = 0, n_absent = 0;
    for (uint32_t round = 0; round < 200; ++round) {
      const uint32_t first = round * 5 % kBlocks;
      const uint64_t tokens = round % 3 == 0 ? kAllTokens : 0b10010110;
      kvasir_block_key ahead = key(first);
      ahead.needed = &tokens;
      const uint64_t ticket = t.prefetch({ahead, key((first + 1) % kBlocks)}, round % 2 * 2);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t block = (first + i) % kBlocks;
        const kvasir_lease lease = t.read(block, &tokens);
        (lease.lease ? n_there : n_absent) += 1;
        if (!lease.lease) continue;
        CHECK(t.has_bytes(lease, first_float(block), tokens));
        t.release(lease);
      }
      if (round % 7 == 0) {
        const kvasir_lease lease = t.fetch((first + 2) % kBlocks);
        CHECK(t.has_bytes(lease, first_float((first + 2) % kBlocks)));
        t.release(lease);
      }
      CHECK(t.host.wait(ticket).status == KVASIR_OK);
    }
    CHECK(n_there > 0);
    CHECK(n_absent > 0);
    CHECK(t.said() == "");
  }

  TEST_CASE("a block that is written again is another one below, whatever was on its way") {
    Tiers t({{"device_blocks", int64_t{1}}, {"cached_blocks", int64_t{0}}});
    t.store_all(2);
    for (uint32_t round = 1; round < 20; ++round) {
      const float first = first_float(0) + static_cast<float>(round);
      kvasir_lease lease = t.acquire(key(0), KVASIR_ACQUIRE_WRITE);
      CHECK(t.has_bytes(lease, first - 1));  // what is not written anew is there
      t.fill(lease, first);
      REQUIRE(t.seal(key(0), lease) == KVASIR_OK);
      if (round % 3 == 0) {  // at once: it has not gone down yet, perhaps
        const kvasir_lease again = [&] {
          t.release(lease);
          return t.acquire(key(0), KVASIR_ACQUIRE_WRITE);
        }();
        CHECK(t.has_bytes(again, first));
        lease = again;
        REQUIRE(t.seal(key(0), lease) == KVASIR_OK);
      }
      t.release(lease);
      t.release(t.fetch(1));  // pushes it out, once it has gone down
      if (round % 2 == 0) {
        const kvasir_lease back = t.fetch(0);
        CHECK(t.has_bytes(back, first));
        t.release(back);
      }
    }
    CHECK(t.said() == "");
  }

  TEST_CASE("blocks are dropped wherever they are") {
    Tiers t({{"device_blocks", int64_t{1}}, {"cached_blocks", int64_t{1}}});
    for (uint32_t round = 0; round < 30; ++round) {
      for (uint32_t block = 0; block < 4; ++block) t.store(block, first_float(block));
      if (round % 2) t.prefetch({key(0), key(1), key(2)}, 0);
      for (uint32_t block = 0; block < 4; ++block)
        REQUIRE_MESSAGE(t.drop(key(block)) == KVASIR_OK, t.plugin.text());
      CHECK(t.read(0).state == KVASIR_LEASE_FAILED);
    }
    REQUIRE(t.plugin->base.drain(t.plugin.self(), 10000, t.plugin.err()) == KVASIR_OK);
    for (uint64_t ticket = 1; ticket <= t.n_tickets; ++ticket)
      CHECK(t.host.wait(ticket).times == 1);
    CHECK(t.said() == "");
  }

  TEST_CASE("a ticket is reported once, cancelled or not, and at the end") {
    std::unique_ptr<Tiers> t = std::make_unique<Tiers>(
        OptionValues{{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{0}}});
    t->store_all(6);
    const uint64_t n_before = t->n_tickets;
    for (uint32_t i = 0; i < 30; ++i) {
      const uint64_t ticket = t->prefetch({key(i % 6), key((i + 3) % 6)}, i % 2 * 2);
      if (i % 3 == 0)
        REQUIRE(t->plugin->cancel(t->plugin.self(), ticket, t->plugin.err()) == KVASIR_OK);
    }
    REQUIRE(t->plugin->base.drain(t->plugin.self(), 0, t->plugin.err()) == KVASIR_OK);
    for (uint64_t ticket = n_before + 1; ticket <= t->n_tickets; ++ticket) {
      const auto report = t->host.wait(ticket);
      CHECK(report.times == 1);
      CHECK((report.status == KVASIR_OK || report.status == KVASIR_ERR_CANCELLED));
    }
  }

  TEST_CASE("equal blocks are one where one is on the device, and both come back where none is") {
    Tiers t({{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{0}}});
    const auto write = [&](uint64_t nonce) {
      kvasir_block_key k = key(0);
      k.hash[1] = nonce;
      const kvasir_lease lease = t.acquire(k, KVASIR_ACQUIRE_WRITE);
      t.fill(lease, first_float(0));
      return lease;
    };
    kvasir_lease a = write(7), b = write(8);
    REQUIRE(t.seal(key(0), a) == KVASIR_OK);
    REQUIRE(t.seal(key(0), b) == KVASIR_OK);
    CHECK(a.k == b.k);
    CHECK(a.handle == b.handle);
    t.release({a, b});
    t.settle(1);
    for (int i = 0; i < 2000 && t.resident(0); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kvasir_lease c = write(9);
    REQUIRE(t.seal(key(0), c) == KVASIR_OK);
    CHECK(c.handle != a.handle);
    t.release(c);
    t.settle(2);
    for (const uint64_t handle : {a.handle, c.handle}) {
      kvasir_block_key k = key(0);
      k.handle = handle;
      const kvasir_lease back = t.acquire(k, KVASIR_ACQUIRE_FETCH);
      CHECK(t.has_bytes(back, first_float(0)));
      t.release(back);
      for (uint64_t holder = handle == a.handle ? 0 : 1; holder < 2; ++holder)
        CHECK(t.drop(k) == KVASIR_OK);
    }
    CHECK(t.read(0).state == KVASIR_LEASE_FAILED);
  }

  TEST_CASE("a token that was damaged in the file is lost by name, and no other block with it") {
    Tiers t({{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{0}}});
    t.store_all(2);
    for (int i = 0; i < 2000 && (t.resident(0) || t.resident(1)); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::string folder = std::filesystem::path(t.folder.path("x")).parent_path();
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (!std::filesystem::read_symlink(entry.path(), error).string().starts_with(folder))
        continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(40);  // V of the first token
      file.put('x');
    }
    const auto leases = t.acquire({key(0), key(1)}, KVASIR_ACQUIRE_FETCH);
    CHECK(leases[0].state == KVASIR_LEASE_FAILED);
    CHECK(t.has_bytes(leases[1], first_float(1)));
    CHECK(t.said().find("token 0 of kv head 0 changed") != std::string::npos);
    t.release(leases[1]);
    CHECK(t.host.wait(t.prefetch({key(0)}, 2)).status == KVASIR_ERR_IO);
    CHECK(t.drop(key(0)) == KVASIR_OK);
  }

  TEST_CASE("blocks of one head leave and come back as those of all") {
    Tiers t({{"device_blocks", int64_t{0}}, {"cached_blocks", int64_t{0}}});
    for (uint32_t head = 0; head < kHeads; ++head) {
      kvasir_lease lease = t.acquire(key(0, head), KVASIR_ACQUIRE_WRITE);
      t.fill(lease, first_float(head));
      REQUIRE(t.seal(key(0, head), lease) == KVASIR_OK);
      t.release(lease);
    }
    const uint64_t some = 0b0101;
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (int i = 0; i < 2000; ++i) {
        const kvasir_lease lease = t.read(0, nullptr, head);
        if (!lease.lease) break;
        t.release(lease);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const kvasir_lease part = t.fetch(0, &some, head);
      CHECK(part.state == KVASIR_LEASE_PARTIAL);
      CHECK(t.has_bytes(part, first_float(head), some));
      const kvasir_lease whole = t.fetch(0, nullptr, head);
      CHECK(t.has_bytes(whole, first_float(head), 0b1111));
      t.release({part, whole});
    }
  }

  TEST_CASE("a step may lease more than the limit; what the device has not is said with a remedy") {
    Tiers t({{"device_blocks", int64_t{1}},
             {"cached_blocks", int64_t{8}},
             {"max_bytes", static_cast<int64_t>(3 * kBlockBytes)}});
    t.store_all(5);  // each waits until another one may leave
    const auto three = t.acquire({key(0), key(1), key(2)}, KVASIR_ACQUIRE_FETCH);
    for (uint32_t block = 0; block < 3; ++block)
      CHECK(t.has_bytes(three[block], first_float(block)));
    std::vector<kvasir_lease> none;
    for (const uint32_t mode : {KVASIR_ACQUIRE_FETCH, KVASIR_ACQUIRE_WRITE}) {
      CHECK(t.try_acquire({key(mode == KVASIR_ACQUIRE_FETCH ? 3 : 9)}, mode, none) ==
            KVASIR_ERR_OUT_OF_MEMORY);
      const std::string text = t.plugin.text();
      CAPTURE(text);
      CHECK(text.find("max_bytes = 1536 leaves no space for 512 more") != text.npos);
      CHECK(text.find("lower device_blocks") != text.npos);
    }
    CHECK(t.host.wait(t.prefetch({key(3)}, 2)).blocks[0] == KVASIR_ERR_OUT_OF_MEMORY);
    t.release(three);
    const kvasir_lease fourth = t.fetch(3);
    CHECK(t.has_bytes(fourth, first_float(3)));
  }

  TEST_CASE("a full device gives up what no step holds, and not what is asked for with the rest") {
    Tiers t({{"device_blocks", int64_t{8}},
             {"cached_blocks", int64_t{8}},
             {"max_bytes", static_cast<int64_t>(3 * kBlockBytes)}});
    t.store_all(5);
    for (const uint32_t block : {2u, 3u, 4u}) CHECK(t.resident(block));
    const auto leases = t.acquire({key(0), key(1), key(2)}, KVASIR_ACQUIRE_FETCH);
    for (uint32_t block = 0; block < 3; ++block)  // 2 was used longest ago
      CHECK(t.has_bytes(leases[block], first_float(block)));
    CHECK(leases[2].tier == 0);
    t.release(leases);
    std::vector<kvasir_lease> none;
    CHECK(t.try_acquire({key(0), key(1), key(2), key(3)}, KVASIR_ACQUIRE_FETCH, none) ==
          KVASIR_ERR_OUT_OF_MEMORY);
    CHECK(t.host.wait(t.prefetch({key(0), key(1)}, 2)).status == KVASIR_OK);
    const auto others = t.acquire({key(3), key(4)}, KVASIR_ACQUIRE_FETCH);
    CHECK(t.has_bytes(others[1], first_float(4)));
  }

  TEST_CASE("what the files do not take is refused when it is created") {
    Tiers t({{"folder_limit_bytes", int64_t{2 * 576}}, {"read_bytes", int64_t{4096}}});
    t.store(0, 1.0f);
    t.store(1, 1.0f);
    std::vector<kvasir_lease> none;
    CHECK(t.try_acquire({key(2)}, KVASIR_ACQUIRE_WRITE, none) == KVASIR_ERR_OUT_OF_MEMORY);
    CHECK_MESSAGE(t.plugin.text().find("raise folder_limit_bytes") != std::string::npos,
                  t.plugin.text());
    REQUIRE(t.drop(key(0)) == KVASIR_OK);
    CHECK(t.try_acquire({key(2)}, KVASIR_ACQUIRE_WRITE, none) == KVASIR_OK);
  }

  TEST_CASE("the block that attention weighs least leaves the device") {
    Tiers t({{"device_blocks", int64_t{2}},
             {"cached_blocks", int64_t{8}},
             {"cache_strategy", std::string("lru-s")}});
    t.store(0, first_float(0));
    t.store(1, first_float(1));
    t.settle(2);
    const auto* heat = static_cast<const kvasir_block_heat*>(
        t.plugin->base.get_extension(t.plugin.self(), KVASIR_EXT_BLOCK_HEAT));
    REQUIRE(heat);
    CHECK(heat->wants(t.plugin.self()) == KVASIR_HEAT_MASS);
    const kvasir_block_key keys[] = {key(0), key(1)};
    const float mass[] = {0.5f, 0.1f};
    REQUIRE(heat->heat(t.plugin.self(), keys, mass, 2, sizeof keys[0], t.plugin.err()) ==
            KVASIR_OK);
    t.store(2, first_float(2));
    t.settle(3);
    CHECK(t.resident(0));
    CHECK(!t.resident(1));
  }
}
