// kvasir.tiered over a folder of its own, as the tests of its tiers and of its file use it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <kvasir/ext/draft/tier_counters.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#include "tests/support/temp_dir.h"

namespace kvasir::test {

constexpr uint32_t kFloats = 64;  // of K and of V: two kv heads, four tokens of 8
constexpr uint64_t kBlockBytes = 2 * kFloats * sizeof(float);
constexpr uint64_t kTokenBytes = 2 * 8 * sizeof(float);          // K and V of one kv head
constexpr uint64_t kRecordBytes = kTokenBytes + 8;               // with its checksum, in the file
constexpr uint64_t kFileBytes = uint64_t{2} * 4 * kRecordBytes;  // of a block

inline kvasir_geometry geometry(uint32_t block_size = 4) {
  kvasir_geometry g = small_geometry();
  g.block_size = block_size;
  g.n_kv_heads = 2;
  g.head_dim = g.v_dim = 8;
  return g;
}

struct Tiered {
  explicit Tiered(OptionValues options, uint32_t block_size = 4)
      : Tiered(std::move(options), geometry(block_size)) {}
  Tiered(OptionValues options, const kvasir_geometry& bound)
      : plugin(host, "tiered", with_folder(std::move(options))) {
    plugin.bind(bound);
  }
  OptionValues with_folder(OptionValues options) {
    options["type_k"] = options["type_v"] = std::string("f32");
    options["folder"] = folder_path();
    options.try_emplace("direct", int64_t{0});  // and so every byte that is read is one of a record
    return options;
  }
  static kvasir_block_key key(uint32_t block, uint32_t kv_head = KVASIR_ALL_HEADS) {
    return {{block + 100, 1}, 0, block, kv_head, 4, 0, nullptr};
  }
  kvasir_lease acquire(uint32_t block, uint32_t mode = KVASIR_ACQUIRE_READ,
                       uint32_t kv_head = KVASIR_ALL_HEADS, const uint64_t* needed = nullptr) {
    kvasir_block_key name = key(block, kv_head);
    name.needed = needed;
    kvasir_lease lease{};
    REQUIRE_MESSAGE(plugin->acquire(plugin.self(), &name, 1, sizeof name, mode, &lease,
                                    sizeof lease, plugin.err()) == KVASIR_OK,
                    plugin.text());
    return lease;
  }
  // Tokens by bit: head 0 has bits 0 to 3, head 1 bits 4 to 7.
  kvasir_lease acquire_tokens(uint32_t block, uint64_t needed,
                              uint32_t kv_head = KVASIR_ALL_HEADS) {
    return acquire(block, KVASIR_ACQUIRE_READ, kv_head, &needed);
  }
  kvasir_status fetch_tokens(uint32_t block, uint64_t needed, uint64_t ticket,
                             uint32_t kv_head = KVASIR_ALL_HEADS) {
    kvasir_block_key name = key(block, kv_head);
    name.needed = &needed;
    const kvasir_io_hint hint = {sizeof hint, 2};
    uint32_t accepted = 0;
    REQUIRE(plugin->prefetch(plugin.self(), &name, 1, sizeof name, &hint, ticket, &accepted,
                             plugin.err()) == KVASIR_OK);
    needed = ~uint64_t{0};  // it was the call's
    return host.wait(ticket).status;
  }
  std::array<kvasir_tier_count, 2> count() {
    const auto* counters = static_cast<const kvasir_tier_counters*>(
        plugin->base.get_extension(plugin.self(), KVASIR_EXT_TIER_COUNTERS));
    REQUIRE(counters);
    std::array<kvasir_tier_count, 2> tiers{};
    uint32_t n = 0;
    REQUIRE(counters->count(plugin.self(), tiers.data(), 2, sizeof tiers[0], &n, plugin.err()) ==
            KVASIR_OK);
    CHECK(n == 2);
    CHECK(std::string(tiers[0].name) == "memory");
    CHECK(std::string(tiers[1].name) == "file");
    return tiers;
  }
  void check_tokens(const kvasir_lease& lease, uint64_t tokens, float first) {
    for (uint32_t i = 0; i < kFloats; ++i)
      if (tokens >> (i / 8) & 1) {
        CHECK(static_cast<const float*>(lease.k)[i] == first + static_cast<float>(i));
        CHECK(static_cast<const float*>(lease.v)[i] == -first - static_cast<float>(i));
      }
  }
  void release(const kvasir_lease& lease) { plugin->release(plugin.self(), &lease.lease, 1); }
  void seal(uint32_t block, kvasir_lease& lease) {
    const kvasir_block_key name = key(block);
    REQUIRE(plugin->seal(plugin.self(), &name, 1, sizeof name, &lease, sizeof lease,
                         plugin.err()) == KVASIR_OK);
    ++n_sealed;
  }
  // K = first, first + 1 …, V the negatives; full, and let go.
  void store(uint32_t block, float first) {
    kvasir_lease lease = acquire(block, KVASIR_ACQUIRE_WRITE);
    auto *k = static_cast<float*>(lease.k), *v = static_cast<float*>(lease.v);
    std::iota(k, k + kFloats, first);
    for (uint32_t i = 0; i < kFloats; ++i) v[i] = -k[i];
    seal(block, lease);
    release(lease);
  }
  // Of a large block: all of it is written, and it is let go, but stays open.
  void fill(uint32_t block) {
    const kvasir_lease lease = acquire(block, KVASIR_ACQUIRE_WRITE);
    std::memset(lease.k, 1, geometry(4096).block_size * 2 * 8 * sizeof(float));
    std::memset(lease.v, 1, geometry(4096).block_size * 2 * 8 * sizeof(float));
    release(lease);
  }
  bool resident(uint32_t block) {  // and the last one used, if so
    const kvasir_lease lease = acquire(block);
    if (lease.lease) release(lease);
    return lease.state == KVASIR_LEASE_RESIDENT;
  }
  // Until all that was sealed is in the file, which has places for that many blocks, and what may
  // leave has left. Writing is the plugin's own thread's business.
  void settle(uint64_t n_blocks, uint32_t resident_block) {
    const auto written = [&] { return count()[0].bytes_read >= n_sealed * kBlockBytes; };
    for (int i = 0; i < 5000 && !written(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    REQUIRE(written());
    CHECK(std::filesystem::file_size(file()) >= n_blocks * kFileBytes);
    REQUIRE(fetch({resident_block}, 1000 + ++n_settled).status == KVASIR_OK);
  }
  FakeHost::Report fetch(const std::vector<uint32_t>& blocks, uint64_t ticket,
                         uint32_t priority = 2) {
    std::vector<kvasir_block_key> keys;
    for (const uint32_t block : blocks) keys.push_back(key(block));
    const kvasir_io_hint hint = {sizeof hint, priority};
    uint32_t accepted = 0;
    REQUIRE(plugin->prefetch(plugin.self(), keys.data(), static_cast<uint32_t>(keys.size()),
                             sizeof keys[0], &hint, ticket, &accepted, plugin.err()) == KVASIR_OK);
    REQUIRE(accepted == keys.size());
    return host.wait(ticket);
  }
  void check_bytes(uint32_t block, float first) {
    check_blocks({block}, [&](uint32_t) { return first; });
  }
  // All are leased together: the first release lets blocks leave.
  template <class First>
  void check_blocks(const std::vector<uint32_t>& blocks, const First& first) {
    std::vector<kvasir_lease> leases;
    for (const uint32_t block : blocks) leases.push_back(acquire(block));
    for (size_t b = 0; b < blocks.size(); ++b) {
      REQUIRE(leases[b].state == KVASIR_LEASE_RESIDENT);
      const auto *k = static_cast<const float*>(leases[b].k),
                 *v = static_cast<const float*>(leases[b].v);
      for (uint32_t i = 0; i < kFloats; ++i) {
        CHECK(k[i] == first(blocks[b]) + static_cast<float>(i));
        CHECK(v[i] == -k[i]);
      }
    }
    for (const kvasir_lease& lease : leases) release(lease);
  }
  kvasir_status drop(uint32_t block) {
    const kvasir_block_key name = key(block);
    return plugin->drop(plugin.self(), &name, 1, sizeof name, KVASIR_DROP_UNREF, plugin.err());
  }
  // The log, but for what a kernel without io_uring adds to it.
  std::vector<std::string> said() const {
    std::vector<std::string> lines = host.lines();
    std::erase_if(lines, [](const std::string& line) {
      return line.find("the kernel gives no io_uring") != line.npos;
    });
    return lines;
  }
  // The nameless file, as this process sees it.
  std::string file() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry.path(), error).string();
      if (!error && target.starts_with(folder_path() + "/")) return entry.path().string();
    }
    return "";
  }

  // Without a slash at its end.
  std::string folder_path() const {
    return std::filesystem::path(folder.path("x")).parent_path().string();
  }

  TempDir folder;
  CompletingHost host;
  PluginInstance<kvasir_storage> plugin;
  uint64_t n_settled = 0, n_sealed = 0;
};

}  // namespace kvasir::test
