// Leases of a step and transfers; see residency.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/residency.h"

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace kvasir {
namespace {

constexpr auto kTransferTimeout = std::chrono::milliseconds(30'000);
// Rounds of make_resident() in which no block may arrive before it gives up.
constexpr int kIdleRounds = 8;
constexpr uint32_t kNow = 2, kAhead = 0;  // kvasir_io_hint.priority

}  // namespace

Residency::Residency(const BlockStore& store, const BlockAccess& access, HostServices& services)
    : store_(store),
      access_(access),
      services_(services),
      moves_(!access.storage.stable_leases()) {}

void Residency::make_resident(BlockList& list, std::vector<NeededBlock> needed) {
  if (!moves_) return;
  keep_missing(list, needed);
  const size_t n_asked = needed.size();
  bool first = true;
  for (int idle = 0; !needed.empty();) {  // rounds without progress
    const size_t before = needed.size();
    lease_present(list, needed, idle < kIdleRounds);
    if (std::exchange(first, false)) {
      blocks_missed_ += needed.size();
      blocks_hit_ += n_asked - needed.size();
    }
    idle = needed.size() < before ? 0 : idle + 1;
    const auto begin = std::chrono::steady_clock::now();
    if (fetch(list, needed)) idle = 0;
    wait_nanos_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
  }
}

void Residency::keep_missing(const BlockList& list, std::vector<NeededBlock>& needed) const {
  std::erase_if(needed, [&](NeededBlock& wanted) {
    if (!list.is_in(store_, wanted.block)) return true;
    const kvasir_lease& lease = list.leases[wanted.block];
    if (!lease.k || lease.state != KVASIR_LEASE_PARTIAL) return lease.k != nullptr;
    for (const NeededBlock& covered : list.partial) {
      if (covered.block != wanted.block) continue;
      if (covered.covers(wanted)) return true;
      wanted.add(covered);
      return false;
    }
    return true;
  });
}

std::vector<kvasir_block_key> Residency::keys_of(const BlockList& list,
                                                 std::span<const NeededBlock> needed) const {
  std::vector<kvasir_block_key> keys;
  keys.reserve(needed.size());
  for (const NeededBlock& wanted : needed) {
    keys.push_back(list.blocks[wanted.block]->key);
    if (!wanted.tokens.empty()) keys.back().needed = wanted.tokens.data();
  }
  return keys;
}

void Residency::lease_present(BlockList& list, std::vector<NeededBlock>& missing, bool may_lack) {
  Storage& storage = access_.storage;
  std::vector<kvasir_lease> leases(missing.size());
  if (storage.acquire(keys_of(list, missing), KVASIR_ACQUIRE_READ, leases.data()) != KVASIR_OK)
    throw Error(ErrorKind::kResource, "storage " + storage.id() +
                                          " cannot hold the blocks of one step at a time: "
                                          "raise its limit or lower the budget");
  std::vector<NeededBlock> still;
  std::string fault;
  for (size_t i = 0; i < missing.size(); ++i) {
    const kvasir_lease& lease = leases[i];
    const uint32_t block = missing[i].block;
    const bool lost = lease.state == KVASIR_LEASE_FAILED;
    const bool unknown = lease.k && lease.format >= access_.n_formats;
    if (unknown && lease.lease) storage.release({lease.lease});
    if (fault.empty() && (lost || unknown || (!may_lack && !lease.k)))
      fault = "block " + std::to_string(block) + " of layer " +
              std::to_string(list.blocks[block]->key.layer) +
              (lost      ? " is lost"
               : unknown ? " came as a lease of an unknown format"
                         : " does not become resident: raise the storage's limits");
    if (lost || unknown) continue;
    if (lease.state == KVASIR_LEASE_NOT_RESIDENT || !lease.k)
      still.push_back(std::move(missing[i]));
    else
      take_lease(list, missing[i], lease);
  }
  if (!fault.empty()) throw PluginError(storage.id(), "acquire", KVASIR_ERR_IO, fault);
  missing = std::move(still);
}

void Residency::take_lease(BlockList& list, const NeededBlock& needed, kvasir_lease lease) {
  const uint32_t block = needed.block;
  lease.format += access_.first_format;
  lease.pos_begin = block * access_.block_size;
  lease.n_tokens = list.blocks[block]->lease.n_tokens;
  lease.token_pos = nullptr;
  // What the step has made so far may point to the bytes of the lease before: it stays leased.
  if (const uint64_t before = list.leases[block].lease) list.superseded.push_back(before);
  if (list.leases[block].state == KVASIR_LEASE_PARTIAL)
    std::erase_if(list.partial, [&](const NeededBlock& old) { return old.block == block; });
  list.leases[block] = lease;
  if (lease.state == KVASIR_LEASE_PARTIAL) list.partial.push_back(needed);
}

bool Residency::fetch(const BlockList& list, std::span<const NeededBlock> missing) {
  const std::vector<kvasir_block_key> wanted = keys_of(list, missing);
  for (size_t done = 0; done < wanted.size();) {
    const std::vector<kvasir_block_key> rest(wanted.begin() + static_cast<ptrdiff_t>(done),
                                             wanted.end());
    uint32_t accepted = 0;
    const uint64_t ticket = start(rest, kNow, accepted);
    if (accepted == 0) {  // over its budget: lease what arrived, then ask again
      if (tickets_.empty()) return false;
      Completion report;  // what prefetch() asked for may be what fills the budget
      if (!services_.wait(tickets_.front(), kTransferTimeout, &report))
        access_.storage.cancel(tickets_.front());
      tickets_.erase(tickets_.begin());
      return true;
    }
    wait_for(ticket, rest);
    done += accepted;
  }
  return false;
}

void Residency::wait_for(uint64_t ticket, std::span<const kvasir_block_key> keys) {
  Storage& storage = access_.storage;
  Completion report;
  if (!services_.wait(ticket, kTransferTimeout, &report)) {
    storage.cancel(ticket);
    throw PluginError(storage.id(), "prefetch", KVASIR_ERR_IO, "no report within 30 s");
  }
  for (size_t i = 0; i < report.block_status.size() && i < keys.size(); ++i)
    if (report.block_status[i] < 0)
      throw PluginError(storage.id(), "prefetch", report.block_status[i],
                        "block " + std::to_string(keys[i].block) + " of layer " +
                            std::to_string(keys[i].layer) + " could not be read back");
  if (report.status < 0 && report.block_status.empty())
    throw PluginError(storage.id(), "prefetch", report.status, "transfer failed");
}

void Residency::prefetch(const BlockList& list, std::vector<NeededBlock> needed) {
  if (!moves_ || !access_.storage.has_prefetch()) return;
  Completion report;
  std::erase_if(tickets_, [&](uint64_t ticket) { return services_.poll(ticket, &report); });
  keep_missing(list, needed);
  if (needed.empty()) return;
  uint32_t accepted = 0;
  const uint64_t ticket = start(keys_of(list, needed), kAhead, accepted);
  if (accepted > 0) tickets_.push_back(ticket);
}

uint64_t Residency::start(const std::vector<kvasir_block_key>& keys, uint32_t priority,
                          uint32_t& accepted) {
  const uint64_t ticket = services_.new_ticket();
  try {
    access_.storage.prefetch(keys, priority, ticket, accepted);
  } catch (...) {
    services_.discard(ticket);
    throw;
  }
  if (accepted > 0) return ticket;
  services_.discard(ticket);
  return 0;
}

void Residency::release_step(BlockList& list) {
  if (!moves_) return;
  std::vector<uint64_t> leases = std::exchange(list.superseded, {});
  list.partial.clear();
  for (size_t block = 0; block < list.blocks.size(); ++block) {
    kvasir_lease& lease = list.leases[block];
    if (!list.is_in(store_, block) || !list.blocks[block]->sealed || !lease.k) continue;
    if (lease.lease) leases.push_back(lease.lease);
    if (list.blocks[block]->lease.lease == lease.lease) list.blocks[block]->lease.lease = 0;
    lease.k = lease.v = nullptr;
    lease.lease = 0;
    lease.state = KVASIR_LEASE_RESIDENT;
  }
  if (!leases.empty()) access_.storage.release(leases);
}

void Residency::release(Block& block, const kvasir_lease& lease) {
  if (!moves_) return;
  if (lease.lease) access_.storage.release({lease.lease});
  if (block.lease.lease == lease.lease) block.lease.lease = 0;
}

void Residency::count_waits(Engagement& into) {
  into.blocks_hit += std::exchange(blocks_hit_, 0);
  into.blocks_missed += std::exchange(blocks_missed_, 0);
  into.transfer_wait_nanos += std::exchange(wait_nanos_, 0);
}

void Residency::count_tiers(Engagement& into) {
  const std::vector<kvasir_tier_count> now = access_.storage.count_tiers();
  counted_.resize(now.size());
  into.tiers.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    TierTraffic& tier = into.tiers[i];
    tier.tier = now[i].name;
    tier.bytes_read += now[i].bytes_read - counted_[i].bytes_read;
    tier.bytes_written += now[i].bytes_written - counted_[i].bytes_written;
    tier.tokens += now[i].tokens - counted_[i].tokens;
  }
  counted_ = now;
}

}  // namespace kvasir
