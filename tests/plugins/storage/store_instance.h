// A storage with a store, for tests of what outlives a process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/ext/draft/store.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"

namespace kvasir::test {

inline constexpr uint32_t kFloats = 64;  // of K and of V: two kv heads, four tokens of 8
inline constexpr uint64_t kFileBytes = 104 + 2 * kFloats * sizeof(float);
inline constexpr uint64_t kRun[2] = {0x0123456789abcdef, 7}, kOtherRun[2] = {5, 6};

// `tiered` with a store, called through the C ABI: blocks of kFloats numbers in a row.
struct StoreInstance {
  explicit StoreInstance(const std::string& store, OptionValues options = {},
                         const uint64_t* run = kRun)
      : plugin(host, "tiered", with_store(std::move(options), store)) {
    REQUIRE_MESSAGE(plugin.status() == KVASIR_OK, plugin.text());
    ext = static_cast<const kvasir_store*>(
        plugin->base.get_extension(plugin.self(), KVASIR_EXT_STORE));
    REQUIRE(ext);
    if (!run) return;
    kvasir_geometry g = small_geometry();
    g.block_size = 4;
    g.n_kv_heads = 2;
    g.head_dim = g.v_dim = 8;
    plugin.bind(g);
    REQUIRE(ext->name_run(plugin.self(), run, "a model", plugin.err()) == KVASIR_OK);
  }
  static OptionValues with_store(OptionValues options, const std::string& store) {
    options["type_k"] = options["type_v"] = std::string("f32");
    options["store"] = store;
    return options;
  }
  static kvasir_block_key key(uint32_t block, uint64_t hash) {
    return {{hash, 1}, 0, block, KVASIR_ALL_HEADS, 4, 0, nullptr};
  }
  // A block of the numbers first, first + 1 …, written under a nonce, named `hash` when it is full.
  void keep(uint32_t block, uint64_t hash, float first) {
    kvasir_block_key name = key(block, hash | uint64_t{1} << 63);
    kvasir_lease lease{};
    REQUIRE(plugin->acquire(plugin.self(), &name, 1, sizeof name, KVASIR_ACQUIRE_WRITE, &lease,
                            sizeof lease, plugin.err()) == KVASIR_OK);
    std::iota(static_cast<float*>(lease.k), static_cast<float*>(lease.k) + kFloats, first);
    std::iota(static_cast<float*>(lease.v), static_cast<float*>(lease.v) + kFloats, -first);
    name.hash[0] = hash;
    REQUIRE(plugin->seal(plugin.self(), &name, 1, sizeof name, &lease, sizeof lease,
                         plugin.err()) == KVASIR_OK);
    let_go(name, lease);
  }
  void let_go(kvasir_block_key name, const kvasir_lease& lease) {
    plugin->release(plugin.self(), &lease.lease, 1);
    name.handle = lease.handle;
    REQUIRE_MESSAGE(plugin->drop(plugin.self(), &name, 1, sizeof name, KVASIR_DROP_FORGET,
                                 plugin.err()) == KVASIR_OK,
                    plugin.text());
  }
  // Whether it is there; then it must be what keep() was given.
  bool find(uint32_t block, uint64_t hash, float first) {
    const kvasir_block_key name = key(block, hash);
    kvasir_lease lease{};
    REQUIRE(ext->restore(plugin.self(), &name, 1, sizeof name, &lease, sizeof lease,
                         plugin.err()) == KVASIR_OK);
    if (lease.state != KVASIR_LEASE_RESIDENT) {
      CHECK(lease.state == KVASIR_LEASE_FAILED);
      return false;
    }
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < kFloats; ++i)
      n_wrong += static_cast<const float*>(lease.k)[i] != first + static_cast<float>(i) ||
                 static_cast<const float*>(lease.v)[i] != -first + static_cast<float>(i);
    CHECK(n_wrong == 0);
    let_go(name, lease);
    return true;
  }
  kvasir_store_result verify(uint32_t flags = 0) {
    const kvasir_store_filter filter = {sizeof filter, flags, {}, 0, 0};
    kvasir_store_result out{sizeof out, 0, 0, 0, 0, 0, 0, 0};
    REQUIRE(ext->verify(plugin.self(), &filter, nullptr, nullptr, &out, plugin.err()) == KVASIR_OK);
    return out;
  }
  kvasir_store_result prune(kvasir_store_filter filter) {
    kvasir_store_result out{sizeof out, 0, 0, 0, 0, 0, 0, 0};
    REQUIRE(ext->prune(plugin.self(), &filter, &out, plugin.err()) == KVASIR_OK);
    return out;
  }
  std::vector<kvasir_store_run> list() {
    std::vector<kvasir_store_run> runs(4);
    uint32_t n = 0;
    REQUIRE(ext->list(plugin.self(), runs.data(), 4, sizeof runs[0], &n, plugin.err()) ==
            KVASIR_OK);
    runs.resize(n);
    return runs;
  }
  uint32_t n_lines(const std::string& part) const {  // of the log, with `part` in them
    uint32_t n = 0;
    for (const std::string& line : host.lines()) n += line.find(part) != line.npos;
    return n;
  }

  CompletingHost host;
  PluginInstance<kvasir_storage> plugin;
  const kvasir_store* ext = nullptr;
};

inline float first_of(uint32_t block) { return static_cast<float>(block * 1000); }

}  // namespace kvasir::test
