// A storage of two tiers with a thread of its own: sealed blocks beyond `pool_blocks` leave, least
// recently used first; prefetch() brings them back, but for every `fail_every`-th, which is lost.
// Bytes move at release. Probe: 0 = blocks, 1 = of these not resident, 2 = fetched, 3 = lost,
// 4 = spilled, 5 = leases.
// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fakes/memory_storage.h"
#include "tests/plugins/fakes/transfers.h"

namespace {
using namespace kvasir;
using namespace kvasir::test;

constexpr kvasir_option_schema kOptions[] = {
    sdk::int_option({.key = "pool_blocks", .help = "sealed ones that stay"}, 64, 0, 1 << 30),
    sdk::int_option({.key = "queue_blocks", .help = "most in flight"}, 1024, 0, 1 << 30),
    sdk::int_option({.key = "fail_every", .help = "0 = none is lost"}, 0, 0, 1 << 30),
    sdk::int_option({.key = "delay_us", .help = "per fetched block"}, 0, 0, 10000000)};

class AsyncStorage : public MemoryStorage {
 public:
  static constexpr kvasir_desc kDesc = fake_desc(KVASIR_KIND_STORAGE, "kvasir.test.async_storage",
                                                 kOptions, {.caps = KVASIR_CAP_OWN_THREADS});

  AsyncStorage(const sdk::Host& host, const sdk::Options& o)
      : MemoryStorage(false),
        pool_blocks_(o.u32("pool_blocks")),
        fail_every_(o.u32("fail_every")),
        transfers_(host, o.u32("queue_blocks"), o.u32("delay_us"),
                   [this](const kvasir_block_key& key) { return fetch(key); }) {}
  const void* get_extension(const char* id) { return probe_extension<AsyncStorage>(id); }
  void bind(const kvasir_geometry& geometry) {
    MemoryStorage::bind(geometry);
    transfers_.start();
  }
  void acquire(const sdk::BlockKeys& keys, uint32_t mode, const sdk::Leases& out) {
    const auto held = transfers_.lock();
    MemoryStorage::acquire(keys, mode, out);
  }
  void release(std::span<const uint64_t> leases) {
    const auto held = transfers_.lock();
    MemoryStorage::release(leases);
    trim();
  }
  void seal(const sdk::BlockKeys& keys, const sdk::Leases& leases) {
    const auto held = transfers_.lock();
    MemoryStorage::seal(keys, leases);
    trim();
  }
  void drop(const sdk::BlockKeys& keys, uint32_t mode) {
    const auto held = transfers_.lock();
    MemoryStorage::drop(keys, mode);
  }
  kvasir_status prefetch(const sdk::BlockKeys& keys, const kvasir_io_hint&, uint64_t ticket,
                         uint32_t& accepted) {
    return transfers_.add(keys, ticket, accepted);
  }
  void cancel(uint64_t ticket) { transfers_.cancel(ticket); }
  kvasir_status drain(uint64_t deadline_ms) { return transfers_.drain(deadline_ms); }
  uint64_t probe(uint32_t item) {
    const auto held = transfers_.lock();
    uint64_t n_absent = 0;
    for (const auto& [id, block] : blocks_) n_absent += block.state == KVASIR_LEASE_NOT_RESIDENT;
    return std::array{n_blocks(), n_absent, n_fetched_, n_lost_, n_spilled_, n_leases()}.at(item);
  }

 private:
  void trim() {
    for (;;) {
      uint64_t n_resident = 0;
      Block* oldest = nullptr;
      for (auto& [id, block] : blocks_) {
        if (!block.is_sealed || block.state != KVASIR_LEASE_RESIDENT) continue;
        ++n_resident;
        if (block.n_leases == 0 && (!oldest || block.last_use < oldest->last_use)) oldest = &block;
      }
      if (n_resident <= pool_blocks_ || !oldest) return;
      oldest->state = KVASIR_LEASE_NOT_RESIDENT;
      ++n_spilled_;
    }
  }
  kvasir_status fetch(const kvasir_block_key& key) {
    const uint64_t id = find(key);
    if (!id || blocks_.at(id).state == KVASIR_LEASE_FAILED) return KVASIR_ERR_IO;
    Block& block = blocks_.at(id);
    block.last_use = ++clock_;
    if (block.state == KVASIR_LEASE_RESIDENT) return KVASIR_OK;
    ++n_fetched_;
    const bool is_lost = fail_every_ && n_fetched_ % fail_every_ == 0;
    n_lost_ += is_lost;
    block.state = is_lost ? KVASIR_LEASE_FAILED : KVASIR_LEASE_RESIDENT;
    return is_lost ? KVASIR_ERR_IO : KVASIR_OK;
  }

  uint32_t pool_blocks_, fail_every_;
  uint64_t n_fetched_ = 0, n_lost_ = 0, n_spilled_ = 0;
  Transfers transfers_;  // last: its thread uses the others
};
}  // namespace

KVASIR_SDK_PLUGIN(KVASIR_KIND_STORAGE, "kvasir.test.async_storage", "0.1.0", AsyncStorage)
