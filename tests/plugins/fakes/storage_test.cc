// The fake asynchronous storage: tiers, completion, cancelling, losing, back-pressure.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace {
using namespace kvasir::test;
using Storage = PluginInstance<kvasir_storage>;

const std::string kFile = KVASIR_BINARY_DIR "/test-plugins/fake/async_storage.so";

// Two kv heads of 8 elements, blocks of 4 tokens.
kvasir_geometry geometry() {
  kvasir_geometry g = small_geometry();
  g.block_size = 4;
  return g;
}

// Before the plugin, which asks once.
struct PerhapsCompletingHost : FakeHost {
  explicit PerhapsCompletingHost(bool completions = true) {
    if (completions) offer_completions();
  }
};

struct Fake {
  explicit Fake(const OptionValues& options, bool completions = true)
      : host(completions), plugin(host, kFile, options) {
    plugin.bind(geometry());
    kvasir_kv_format f{};
    uint32_t n = 0;
    CHECK(plugin->formats(plugin.self(), nullptr, 0, &n, plugin.err()) == KVASIR_ERR_CAPACITY);
    CHECK(n == 1);
    REQUIRE(plugin->formats(plugin.self(), &f, 1, &n, plugin.err()) == KVASIR_OK);
  }
  static kvasir_block_key key(uint32_t block, uint32_t kv_head = KVASIR_ALL_HEADS) {
    return {{block + 100, 1}, 0, block, kv_head, 4, 0, nullptr};
  }
  kvasir_lease acquire(const kvasir_block_key& key, uint32_t mode = KVASIR_ACQUIRE_READ) {
    kvasir_lease lease{};
    REQUIRE(plugin->acquire(plugin.self(), &key, 1, sizeof key, mode, &lease, sizeof lease,
                            plugin.err()) == KVASIR_OK);
    return lease;
  }
  void release(const kvasir_lease& lease) { plugin->release(plugin.self(), &lease.lease, 1); }
  // Writes 0, 1, 2 … + 1000 * block, seals, lets go.
  void store(uint32_t block) {
    kvasir_block_key name = key(block);
    kvasir_lease lease = acquire(name, KVASIR_ACQUIRE_WRITE);
    float* k = static_cast<float*>(lease.k);
    std::iota(k, k + 64, 1000.0f * static_cast<float>(block));
    std::iota(static_cast<float*>(lease.v), static_cast<float*>(lease.v) + 64, 0.0f);
    REQUIRE(plugin->seal(plugin.self(), &name, 1, sizeof name, &lease, sizeof lease,
                         plugin.err()) == KVASIR_OK);
    CHECK(k[63] == 63.0f + 1000.0f * static_cast<float>(block));  // readable until released
    release(lease);
  }
  kvasir_status prefetch(const std::vector<kvasir_block_key>& keys, uint64_t ticket,
                         uint32_t* accepted) {
    const kvasir_io_hint hint = {sizeof hint, 1};
    return plugin->prefetch(plugin.self(), keys.data(), uint32_t(keys.size()), sizeof keys[0],
                            &hint, ticket, accepted, plugin.err());
  }
  PerhapsCompletingHost host;
  Storage plugin;
};

TEST_CASE("sealed blocks beyond the pool leave, and come back with their bytes") {
  Fake fake({{"pool_blocks", int64_t{2}}});
  for (uint32_t block = 0; block < 5; ++block) fake.store(block);
  CHECK(fake.plugin.probe(0) == 5);
  CHECK(fake.plugin.probe(1) == 3);
  CHECK(fake.acquire(Fake::key(0)).state == KVASIR_LEASE_NOT_RESIDENT);
  CHECK(fake.acquire(Fake::key(0)).k == nullptr);
  uint32_t accepted = 0;
  REQUIRE(fake.prefetch({Fake::key(0), Fake::key(1)}, 42, &accepted) == KVASIR_OK);
  CHECK(accepted == 2);
  const auto report = fake.host.wait(42);
  CHECK(report.times == 1);
  CHECK(report.status == KVASIR_OK);
  CHECK(report.blocks == std::vector<kvasir_status>{0, 0});
  const auto lease = fake.acquire(Fake::key(1));
  REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
  CHECK(static_cast<const float*>(lease.k)[63] == 1063.0f);
  auto named = Fake::key(1);
  named.handle = lease.handle;
  const auto twice = fake.acquire(named);
  CHECK(twice.k == lease.k);  // nothing moves while it is leased
  fake.release(twice);
  fake.release(lease);
  const auto moved = fake.acquire(named);
  CHECK(moved.k != lease.k);  // leases are not stable
  CHECK(static_cast<const float*>(moved.k)[63] == 1063.0f);
  fake.release(moved);
  CHECK(fake.plugin.probe(5) == 0);
}

TEST_CASE("a key of one head reads a slice of a block of all heads; dropping all slices frees it") {
  Fake fake({});
  fake.store(3);
  const auto whole = fake.acquire(Fake::key(3));
  const auto slice = fake.acquire(Fake::key(3, 1));
  CHECK(slice.kv_head == 1);
  CHECK(static_cast<const float*>(slice.k) == static_cast<const float*>(whole.k) + 32);
  CHECK(static_cast<const float*>(slice.v)[0] == 32.0f);
  fake.release(slice);
  fake.release(whole);
  for (uint32_t head : {0u, 1u}) {
    CHECK(fake.plugin.probe(0) == 1);
    const auto key = Fake::key(3, head);
    REQUIRE(fake.plugin->drop(fake.plugin.self(), &key, 1, sizeof key, KVASIR_DROP_UNREF,
                              fake.plugin.err()) == KVASIR_OK);
  }
  CHECK(fake.plugin.probe(0) == 0);
  CHECK(fake.acquire(Fake::key(3)).state == KVASIR_LEASE_FAILED);
}

TEST_CASE("a lost block is reported by its own status and stays lost") {
  Fake fake({{"pool_blocks", int64_t{0}}, {"fail_every", int64_t{2}}});
  for (uint32_t block = 0; block < 3; ++block) fake.store(block);
  uint32_t accepted = 0;
  REQUIRE(fake.prefetch({Fake::key(0), Fake::key(1), Fake::key(2), Fake::key(77)}, 1, &accepted) ==
          KVASIR_OK);
  const auto report = fake.host.wait(1);
  CHECK(report.status < 0);
  CHECK(report.blocks == std::vector<kvasir_status>{0, KVASIR_ERR_IO, 0, KVASIR_ERR_IO});
  CHECK(fake.acquire(Fake::key(1)).state == KVASIR_LEASE_FAILED);
  CHECK(fake.acquire(Fake::key(0)).state == KVASIR_LEASE_RESIDENT);
  CHECK(fake.plugin.probe(3) == 1);
}

TEST_CASE("a cancelled ticket is reported once, as cancelled; a full queue takes a prefix") {
  Fake fake(
      {{"pool_blocks", int64_t{0}}, {"queue_blocks", int64_t{3}}, {"delay_us", int64_t{20000}}});
  for (uint32_t block = 0; block < 4; ++block) fake.store(block);
  uint32_t accepted = 0;
  REQUIRE(fake.prefetch({Fake::key(0), Fake::key(1)}, 1, &accepted) == KVASIR_OK);
  REQUIRE(fake.prefetch({Fake::key(2), Fake::key(3)}, 2, &accepted) == KVASIR_OK);
  CHECK(accepted == 1);
  CHECK(fake.prefetch({Fake::key(3)}, 3, &accepted) == KVASIR_AGAIN);
  CHECK(accepted == 0);
  REQUIRE(fake.plugin->cancel(fake.plugin.self(), 2, fake.plugin.err()) == KVASIR_OK);
  CHECK(fake.plugin->base.drain(fake.plugin.self(), 0, fake.plugin.err()) == KVASIR_AGAIN);
  CHECK(fake.plugin->base.drain(fake.plugin.self(), 10000, fake.plugin.err()) == KVASIR_OK);
  CHECK(fake.host.wait(1).status == KVASIR_OK);
  const auto report = fake.host.wait(2);
  CHECK(report.status == KVASIR_ERR_CANCELLED);
  CHECK(report.times == 1);
  CHECK(fake.acquire(Fake::key(2)).state == KVASIR_LEASE_NOT_RESIDENT);
}

TEST_CASE("destroying with transfers in flight reports them first") {
  PerhapsCompletingHost host;
  {
    Storage plugin(host, kFile, {{"delay_us", int64_t{5000}}});
    plugin.bind(geometry());
    const auto key = Fake::key(0);
    const kvasir_io_hint hint = {sizeof hint, 0};
    uint32_t accepted = 0;
    for (uint64_t ticket : {1u, 2u})
      REQUIRE(plugin->prefetch(plugin.self(), &key, 1, sizeof key, &hint, ticket, &accepted,
                               plugin.err()) == KVASIR_OK);
  }
  CHECK(host.wait(1).times == 1);
  CHECK(host.wait(2).times == 1);
}

TEST_CASE("without the completion service prefetch is unsupported, the rest works") {
  Fake fake({}, false);
  fake.store(0);
  uint32_t accepted = 7;
  CHECK(fake.prefetch({Fake::key(0)}, 1, &accepted) == KVASIR_ERR_UNSUPPORTED);
  CHECK(accepted == 0);
  CHECK(fake.plugin.text() != "");
}

}  // namespace
