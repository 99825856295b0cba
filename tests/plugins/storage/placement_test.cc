// Which memory node a kv head belongs on, and that kvasir.dram and kvasir.tiered put it there.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/shared/placement.h"

#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "core/plugin/host.h"
#include "plugins/storage/tiered/block_places.h"
#include "tests/support/memory_node.h"
#include "tests/support/plugin_instance.h"
#include "tests/support/step_data.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;
using Nodes = std::vector<int32_t>;

// As plugins see it on a machine of that hwloc description.
sdk::HeadPlacement placement_on(const std::string& topology, uint32_t n_kv_heads,
                                uint32_t n_threads = 0, bool bind = true) {
  ThreadPool pool(Topology::synthetic(topology), n_threads, bind);
  const HostServices services(pool, {});
  return {sdk::Host(services.host(), "test"), n_kv_heads};
}

std::vector<Nodes> nodes_by_head(const sdk::HeadPlacement& placement, uint32_t n_kv_heads) {
  std::vector<Nodes> out;
  for (uint32_t head = 0; head < n_kv_heads; ++head) out.push_back(placement.nodes_of(head));
  return out;
}

// The policy of the page at `p`: its mode, and the nodes it names.
std::pair<int, std::set<unsigned>> policy_at(const void* p) {
  bitmask* mask = numa_allocate_nodemask();
  int mode = -1;
  REQUIRE(get_mempolicy(&mode, mask->maskp, mask->size + 1, const_cast<void*>(p), MPOL_F_ADDR) ==
          0);
  std::set<unsigned> nodes;
  for (unsigned node = 0; node < mask->size; ++node)
    if (numa_bitmask_isbitset(mask, node)) nodes.insert(node);
  numa_bitmask_free(mask);
  return {mode, nodes};
}

// kvasir.dram on a host whose workers are on these nodes.
struct Dram {
  FakeHost host;
  PluginInstance<kvasir_storage> storage;
  kvasir_geometry geometry = small_geometry();
  kvasir_kv_format format{};

  Dram(const Nodes& node_of_worker, uint32_t n_kv_heads)
      : host(static_cast<uint32_t>(node_of_worker.size()), node_of_worker), storage(host, "dram") {
    geometry.n_kv_heads = n_kv_heads;
    geometry.n_q_heads = 2 * n_kv_heads;
    storage.bind(geometry);
    uint32_t n = 0;
    REQUIRE(storage->formats(storage.self(), &format, 1, &n, storage.err()) == KVASIR_OK);
  }
  kvasir_lease acquire(uint32_t block, uint32_t mode, uint32_t kv_head = KVASIR_ALL_HEADS) {
    const kvasir_block_key key{{block + 1, 7}, 0, block, kv_head, 0, 0, nullptr};
    kvasir_lease out{};
    REQUIRE_MESSAGE(storage->acquire(storage.self(), &key, 1, sizeof key, mode, &out, sizeof out,
                                     storage.err()) == KVASIR_OK,
                    storage.text());
    REQUIRE(out.state == KVASIR_LEASE_RESIDENT);
    return out;
  }
  // Bytes of one kv head in a lease of all; K, then V.
  std::pair<std::byte*, std::byte*> head(const kvasir_lease& lease, uint32_t kv_head) const {
    return {static_cast<std::byte*>(lease.k) + kv_head * format.k_head_stride,
            static_cast<std::byte*>(lease.v) + kv_head * format.v_head_stride};
  }
  uint64_t k_bytes() const { return geometry.block_size * format.k_token_stride; }
  uint64_t v_bytes() const { return geometry.block_size * format.v_token_stride; }
};

// Pages that nobody has touched.
struct Page {
  std::byte* data;
  uint64_t bytes;
  explicit Page(uint64_t n) : bytes(n) {
    data = static_cast<std::byte*>(
        mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(data != MAP_FAILED);
  }
  ~Page() { munmap(data, bytes); }
  Page(const Page&) = delete;
};

TEST_SUITE("plugins/storage") {
  TEST_CASE("neighbouring heads belong to the node of the workers that read them") {
    CHECK(nodes_by_head(placement_on("numa:2 core:4 pu:2", 8), 8) ==
          std::vector<Nodes>{{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}});
    CHECK(nodes_by_head(placement_on("numa:4 core:2 pu:1", 8), 8) ==
          std::vector<Nodes>{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}});
    CHECK(nodes_by_head(placement_on("numa:1 core:4 pu:1", 2), 2) == std::vector<Nodes>{{0}, {0}});
    // Fewer threads than cores are spread over the nodes, and so are the heads.
    CHECK(nodes_by_head(placement_on("numa:4 core:8 pu:1", 4, 4), 4) ==
          std::vector<Nodes>{{0}, {1}, {2}, {3}});
  }

  TEST_CASE("a head on the border, or too few heads: their nodes share the reading") {
    CHECK(nodes_by_head(placement_on("numa:2 core:4 pu:1", 3), 3) ==
          std::vector<Nodes>{{0}, {0, 1}, {1}});
    CHECK(nodes_by_head(placement_on("numa:4 core:2 pu:1", 2), 2) ==
          std::vector<Nodes>{{0, 1}, {2, 3}});
    CHECK(nodes_by_head(placement_on("numa:2 core:4 pu:1", 1), 1) == std::vector<Nodes>{{0, 1}});
  }

  TEST_CASE("every node has its share of the heads, in any machine") {
    for (const uint32_t n_nodes : {1u, 2u, 3u, 4u})
      for (const uint32_t n_cores : {1u, 2u, 5u})
        for (const uint32_t n_kv_heads : {1u, 2u, 3u, 4u, 7u, 8u, 32u}) {
          CAPTURE(n_nodes);
          CAPTURE(n_cores);
          CAPTURE(n_kv_heads);
          const sdk::HeadPlacement placement = placement_on(
              "numa:" + std::to_string(n_nodes) + " core:" + std::to_string(n_cores) + " pu:1",
              n_kv_heads);
          REQUIRE(placement.n_nodes() == n_nodes);
          constexpr uint64_t kParts = 60;  // a multiple of every number of nodes
          std::map<uint32_t, uint64_t> parts_of_node;
          for (uint32_t head = 0; head < n_kv_heads; ++head) {
            const Nodes nodes = placement.nodes_of(head);
            for (uint64_t part = 0; part < kParts; ++part) {
              const uint32_t group = placement.group_of(head, part, kParts);
              ++parts_of_node[group];
              // What is read on a node is in the memory of that node.
              CHECK(std::count(nodes.begin(), nodes.end(), static_cast<int32_t>(group)) == 1);
            }
          }
          for (uint32_t node = 0; node < n_nodes; ++node)
            CHECK(parts_of_node[node] == kParts * n_kv_heads / n_nodes);
        }
  }

  TEST_CASE("workers that float over the cores leave the place to the first touch") {
    CHECK(placement_on("numa:2 core:4 pu:1", 8, 0, false).n_nodes() == 0);
    CHECK(placement_on("numa:2 core:1 pu:1", 8, 6).n_nodes() == 0);  // more threads than cores
    for (const uint32_t workers : {0u, 2u}) {  // a host without a pool, or one that does not say
      const FakeHost host(workers);
      const sdk::HeadPlacement placement(sdk::Host(host.host(), "test"), 4);
      CHECK(placement.n_nodes() == 0);
      CHECK(placement.nodes_of(3).empty());
      CHECK(placement.group_of(3, 0, 1) == 0);
    }
  }

  TEST_CASE("blocks are bound to the node of their workers, and lie there") {
    if (!can_bind(0)) {
      MESSAGE("SKIPPED: memory cannot be placed here");
      return;
    }
    for (const Nodes& workers : {Nodes{0, 0}, Nodes{0, 0, 1, 1}, Nodes{}}) {
      CAPTURE(workers.size());
      Dram dram(workers, 4);
      const sdk::HeadPlacement placement(sdk::Host(dram.host.host(), "test"), 4);
      bool refused = false;
      for (uint32_t block = 0; block < 40; ++block) {
        const kvasir_lease lease = dram.acquire(block, KVASIR_ACQUIRE_WRITE);
        for (uint32_t kv_head = 0; kv_head < 4; ++kv_head) {
          CAPTURE(kv_head);
          const auto [k, v] = dram.head(lease, kv_head);
          const Nodes nodes = placement.nodes_of(kv_head);
          const auto [mode, bound] = policy_at(k);
          CHECK(policy_at(v + dram.v_bytes() - 1) == std::pair(mode, bound));
          if (nodes.empty() || !can_bind(nodes[0])) {
            CHECK(mode == MPOL_DEFAULT);
            refused |= !nodes.empty();
            continue;
          }
          CHECK(mode == MPOL_PREFERRED);
          CHECK(bound == std::set<unsigned>{static_cast<unsigned>(nodes[0])});
          std::memset(k, 1, dram.k_bytes());
          CHECK(node_at(k) == nodes[0]);
        }
      }
      // Said once where it matters, with the node that cannot be had.
      REQUIRE(dram.host.lines().size() == (refused ? 1 : 0));
      if (refused) CHECK(dram.host.lines()[0].find("memory node 1: ") != std::string::npos);
    }
  }

  TEST_CASE("a page of a block lies with the head that has most of it") {
    // K of a head takes a page and a half, V half of one.
    kvasir_geometry g = small_geometry();
    g.n_kv_heads = 4, g.block_size = 32, g.head_dim = 96, g.v_dim = 32;
    sdk::KvTypes types;
    types.k = types.v = KVASIR_DTYPE_F16;
    const sdk::KvLayout layout = sdk::kv_layout(g, types, 4);
    REQUIRE(layout.k_bytes == 6 * 4096);
    REQUIRE(layout.v_bytes == 2 * 4096);
    const bool has_two = can_bind(1);
    if (!can_bind(0)) {
      MESSAGE("SKIPPED: memory cannot be placed here");
      return;
    }
    // Heads 0 and 1 are read on node 0, heads 2 and 3 on node 1.
    const tiered::BlockPlaces places(sdk::HeadPlacement({0, 0, 1, 1}, 4), layout, 0, 4);
    const Page page(layout.block_bytes());
    const std::string refusal = places.place(page.data, sdk::Touched::kNo);
    CHECK(refusal.empty() == has_two);
    if (!has_two) CHECK(refusal.find("memory node 1: ") == 0);
    for (uint32_t i = 0; i < 8; ++i) {
      CAPTURE(i);
      const unsigned node = i < 3 || i == 6 ? 0 : 1;
      const auto [mode, bound] = policy_at(page.data + i * 4096);
      if (node == 1 && !has_two) continue;
      CHECK(mode == MPOL_PREFERRED);
      CHECK(bound == std::set<unsigned>{node});
    }
    // A block of head 3 alone; pages that were touched on node 0 move.
    const sdk::KvLayout one = sdk::kv_layout(g, types, 1);
    const Page alone(one.block_bytes());
    std::memset(alone.data, 1, one.block_bytes());
    const tiered::BlockPlaces of_head(sdk::HeadPlacement({0, 0, 1, 1}, 4), one, 3, 1);
    CHECK(of_head.place(alone.data, sdk::Touched::kYes).empty() == has_two);
    if (has_two) CHECK(node_at(alone.data) == 1);
    // On one node, and where nobody knows: nothing is asked of the system.
    for (const sdk::HeadPlacement& nowhere :
         {sdk::HeadPlacement(Nodes{0, 0}, 4), sdk::HeadPlacement(Nodes{}, 4)}) {
      const Page plain(layout.block_bytes());
      CHECK(
          tiered::BlockPlaces(nowhere, layout, 0, 4).place(plain.data, sdk::Touched::kNo).empty());
      CHECK(policy_at(plain.data).first == MPOL_DEFAULT);
    }
  }

  TEST_CASE("blocks of kvasir.tiered are bound likewise, written ones and those that come back") {
    if (!can_bind(0)) {
      MESSAGE("SKIPPED: memory cannot be placed here");
      return;
    }
    constexpr uint32_t kHeads = 2, kBlocks = 6;
    const TempDir folder;
    FakeHost host(2, {0, 1});
    host.offer_completions();
    PluginInstance<kvasir_storage> storage(
        host, "tiered",
        {{"folder", std::filesystem::path(folder.path("x")).parent_path().string()},
         {"cached_blocks", int64_t{0}}});
    kvasir_geometry g = small_geometry();
    g.n_kv_heads = kHeads, g.n_q_heads = 4, g.block_size = 32, g.head_dim = g.v_dim = 64;
    storage.bind(g);  // K of a head is a page, in f16, and so is V
    const auto check = [&](uint32_t block, uint32_t mode) {
      CAPTURE(block);
      CAPTURE(mode);
      kvasir_block_key key{{block + 1, 7}, 0, block, KVASIR_ALL_HEADS, 32, 0, nullptr};
      kvasir_lease lease{};
      REQUIRE(storage->acquire(storage.self(), &key, 1, sizeof key, mode, &lease, sizeof lease,
                               storage.err()) == KVASIR_OK);
      REQUIRE(lease.state == KVASIR_LEASE_RESIDENT);
      for (uint32_t page = 0; page < 4; ++page) {
        auto* at = static_cast<std::byte*>(lease.k) + page * 4096;
        if (mode == KVASIR_ACQUIRE_WRITE) std::memset(at, 1, 4096);
        const int32_t node = page % 2;
        if (!can_bind(node)) continue;
        CHECK(policy_at(at) ==
              std::pair(int{MPOL_PREFERRED}, std::set<unsigned>{static_cast<unsigned>(node)}));
        CHECK(node_at(at) == node);
      }
      if (mode == KVASIR_ACQUIRE_WRITE)
        REQUIRE(storage->seal(storage.self(), &key, 1, sizeof key, &lease, sizeof lease,
                              storage.err()) == KVASIR_OK);
      storage->release(storage.self(), &lease.lease, 1);
    };
    for (uint32_t block = 0; block < kBlocks; ++block) check(block, KVASIR_ACQUIRE_WRITE);
    for (uint32_t block = 0; block < kBlocks; ++block) check(block, KVASIR_ACQUIRE_FETCH);
    const auto refused = [](const std::string& line) {
      return line.find("memory node 1: ") != std::string::npos;
    };
    const auto lines = host.lines();
    CHECK(std::count_if(lines.begin(), lines.end(), refused) == (can_bind(1) ? 0 : 1));
  }

  TEST_CASE("a head that two nodes read lies on both in turn") {
    if (!can_bind(1)) {
      MESSAGE("SKIPPED: memory cannot be placed on a second node here");
      return;
    }
    Dram dram({0, 1}, 1);
    const auto [mode, bound] = policy_at(dram.acquire(0, KVASIR_ACQUIRE_WRITE).k);
    CHECK(mode == MPOL_INTERLEAVE);
    CHECK(bound == std::set<unsigned>{0, 1});
  }

  TEST_CASE(
      "with several nodes, no huge page holds tokens of two heads, and tokens keep their K and V") {
    constexpr uint32_t kHeads = 3, kBlocks = 9000;  // more than one mapping
    Dram dram({0, 0, 1}, kHeads);
    std::map<uintptr_t, uint32_t> head_of_page;
    const auto check_page = [&](const std::byte* p, uint32_t kv_head) {
      const auto [at, is_new] = head_of_page.emplace(reinterpret_cast<uintptr_t>(p) >> 21, kv_head);
      CHECK(at->second == kv_head);
    };
    const auto mark = [](uint32_t block, uint32_t kv_head) {
      return static_cast<int>((block * 31 + kv_head * 7) % 251 + 1);
    };
    for (uint32_t block = 0; block < kBlocks; ++block) {
      // Every other block is made of heads of their own.
      for (uint32_t kv_head = 0; kv_head < kHeads; ++kv_head) {
        const kvasir_lease lease =
            block % 2 == 0 && kv_head > 0
                ? dram.acquire(block, KVASIR_ACQUIRE_READ)
                : dram.acquire(block, KVASIR_ACQUIRE_WRITE, block % 2 ? kv_head : KVASIR_ALL_HEADS);
        const auto [k, v] = dram.head(lease, block % 2 ? 0 : kv_head);
        if (block % 2 == 0) check_page(k, kv_head), check_page(v + dram.v_bytes() - 1, kv_head);
        std::memset(k, mark(block, kv_head), dram.k_bytes());
        std::memset(v, mark(block, kv_head) + 1, dram.v_bytes());
        if (block % 2 == 0 && kv_head > 0)
          dram.storage->release(dram.storage.self(), &lease.lease, 1);
      }
    }
    uint64_t n_wrong = 0;
    for (uint32_t block = 0; block < kBlocks; ++block)
      for (uint32_t kv_head = 0; kv_head < kHeads; ++kv_head) {
        // As a slice of a block of all heads, or as the block it is.
        const kvasir_lease lease = dram.acquire(block, KVASIR_ACQUIRE_READ, kv_head);
        const auto* k = static_cast<const std::byte*>(lease.k);
        const auto* v = static_cast<const std::byte*>(lease.v);
        for (uint64_t i = 0; i < dram.k_bytes(); ++i)
          n_wrong += static_cast<int>(k[i]) != mark(block, kv_head);
        for (uint64_t i = 0; i < dram.v_bytes(); ++i)
          n_wrong += static_cast<int>(v[i]) != mark(block, kv_head) + 1;
      }
    CHECK(n_wrong == 0);
    CHECK(dram.format.k_head_stride % (2u << 20) == 0);
    CHECK(dram.format.k_head_stride == dram.format.v_head_stride);
  }
}

}  // namespace
