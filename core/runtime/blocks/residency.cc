// Leases of a step and transfers; see residency.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocks/residency.h"

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace kvasir {
namespace {

// Rounds of make_resident() in which no block may arrive before it gives up.
constexpr int kIdleRounds = 8;
constexpr uint32_t kNow = 2, kAhead = 0;  // kvasir_io_hint.priority

}  // namespace

Residency::Residency(const BlockStore& store, const BlockAccess& access, HostServices& services)
    : store_(store),
      access_(access),
      services_(services),
      moves_(!access.storage.stable_leases()) {}

uint64_t Residency::make_resident(std::span<const ListNeeds> needs) {
  if (!moves_) return 0;
  std::vector<Missing> missing = missing_of(needs);
  if (missing.empty()) return 0;
  const std::vector<uint64_t> busy = busy_nanos();
  const auto begin = std::chrono::steady_clock::now();
  const size_t n_asked = missing.size();
  const bool fetches = access_.storage.fetches();
  const size_t n_fetched =
      lease_present(missing, fetches ? KVASIR_ACQUIRE_FETCH : KVASIR_ACQUIRE_READ, true);
  const size_t n_missed = n_fetched + missing.size();
  blocks_missed_ += n_missed;
  blocks_hit_ += n_asked - n_missed;
  if (n_missed != 0) {
    fetch_missing(missing);
    add_waited(busy, static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count()));
  }
  return n_missed;
}

void Residency::fetch_missing(std::vector<Missing>& missing) {
  for (int idle = 0; !missing.empty();) {  // rounds without progress
    if (start_and_wait(missing)) idle = 0;
    const size_t before = missing.size();
    lease_present(missing, KVASIR_ACQUIRE_READ, idle < kIdleRounds);
    idle = missing.size() < before ? 0 : idle + 1;
  }
}

std::vector<Residency::Missing> Residency::missing_of(std::span<const ListNeeds> needs) const {
  std::vector<Missing> missing;
  for (const auto& [list, blocks] : needs)
    for (const NeededBlock& needed : blocks) add_missing(*list, needed, missing);
  return missing;
}

void Residency::add_missing(BlockList& list, const NeededBlock& needed,
                            std::vector<Missing>& missing) const {
  if (!list.is_in(store_, needed.block)) return;
  const kvasir_lease& lease = list.leases[needed.block];
  if (!lease.k) return void(missing.push_back({&list, needed}));
  if (lease.state != KVASIR_LEASE_PARTIAL) return;
  for (const NeededBlock& covered : list.partial) {
    if (covered.block != needed.block) continue;
    if (covered.covers(needed)) return;
    missing.push_back({&list, needed});
    return missing.back().needed.add(covered);
  }
}

std::vector<kvasir_block_key> Residency::keys_of(std::span<const Missing> missing) const {
  std::vector<kvasir_block_key> keys;
  keys.reserve(missing.size());
  for (const auto& [list, needed] : missing) {
    keys.push_back(list->blocks[needed.block]->key);
    if (!needed.tokens.empty()) keys.back().needed = needed.tokens.data();
  }
  return keys;
}

size_t Residency::lease_present(std::vector<Missing>& missing, uint32_t mode, bool may_lack) {
  Storage& storage = access_.storage;
  std::vector<kvasir_lease> leases(missing.size());
  const auto acquire = [&] {
    return storage.acquire(keys_of(missing), mode, leases.data()) == KVASIR_OK;
  };
  if (!acquire() && !(release_kept() && acquire()))
    throw Error(ErrorKind::kResource, "storage " + storage.id() +
                                          " cannot hold the blocks of one step at a time: "
                                          "raise its limit or lower the budget");
  std::vector<Missing> still;
  size_t n_fetched = 0;
  std::string fault;
  for (size_t i = 0; i < missing.size(); ++i) {
    const kvasir_lease& lease = leases[i];
    const uint32_t block = missing[i].needed.block;
    const bool lost = lease.state == KVASIR_LEASE_FAILED;
    const bool unknown = lease.k && lease.format >= access_.n_formats;
    if (unknown && lease.lease) storage.release({lease.lease});
    if (fault.empty() && (lost || unknown || (!may_lack && !lease.k)))
      fault = "block " + std::to_string(block) + " of layer " +
              std::to_string(missing[i].list->blocks[block]->key.layer) +
              (lost      ? " is lost"
               : unknown ? " came as a lease of an unknown format"
                         : " does not become resident: raise the storage's limits");
    if (lost || unknown) continue;
    if (lease.state == KVASIR_LEASE_NOT_RESIDENT || !lease.k) {
      missing[i].list->lacked = true;
      still.push_back(std::move(missing[i]));
      continue;
    }
    take_lease(missing[i], lease);
    if (mode != KVASIR_ACQUIRE_FETCH || lease.tier == 0) continue;
    missing[i].list->lacked = true;
    ++n_fetched;
  }
  if (!fault.empty()) throw PluginError(storage.id(), "acquire", KVASIR_ERR_IO, fault);
  missing = std::move(still);
  return n_fetched;
}

void Residency::take_lease(const Missing& missing, kvasir_lease lease) {
  BlockList& list = *missing.list;
  const uint32_t block = missing.needed.block;
  lease.format += access_.first_format;
  lease.pos_begin = block * access_.block_size;
  lease.n_tokens = list.blocks[block]->lease.n_tokens;
  lease.token_pos = nullptr;
  // What the step has made so far may point to the bytes of the lease before: it stays leased.
  if (const uint64_t before = list.leases[block].lease) list.superseded.push_back(before);
  if (list.leases[block].state == KVASIR_LEASE_PARTIAL)
    std::erase_if(list.partial, [&](const NeededBlock& old) { return old.block == block; });
  list.leases[block] = lease;
  if (lease.state == KVASIR_LEASE_PARTIAL) list.partial.push_back(missing.needed);
}

bool Residency::start_and_wait(std::span<const Missing> missing) {
  const std::vector<kvasir_block_key> wanted = keys_of(missing);
  for (size_t done = 0; done < wanted.size();) {
    const std::vector<kvasir_block_key> rest(wanted.begin() + static_cast<ptrdiff_t>(done),
                                             wanted.end());
    uint32_t accepted = 0;
    const uint64_t ticket = start(rest, kNow, accepted);
    if (accepted == 0) {  // over its budget: lease what arrived, then ask again
      if (release_kept()) return true;
      if (tickets_.empty()) return false;
      Completion report;  // what prefetch() asked for may be what fills the budget
      if (!services_.wait(tickets_.front(), transfer_timeout_, &report)) give_up(tickets_.front());
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
  if (!services_.wait(ticket, transfer_timeout_, &report)) {
    give_up(ticket);
    throw PluginError(storage.id(), "prefetch", KVASIR_ERR_IO,
                      "no report within " + std::to_string(transfer_timeout_.count()) +
                          " s (transfer_seconds of [cache])");
  }
  for (size_t i = 0; i < report.block_status.size() && i < keys.size(); ++i)
    if (report.block_status[i] < 0)
      throw PluginError(storage.id(), "prefetch", report.block_status[i],
                        "block " + std::to_string(keys[i].block) + " of layer " +
                            std::to_string(keys[i].layer) + " is lost");
  if (report.status < 0 && report.block_status.empty())
    throw PluginError(storage.id(), "prefetch", report.status, "transfer failed");
}

void Residency::give_up(uint64_t ticket) {
  services_.discard(ticket);
  access_.storage.cancel(ticket);
}

void Residency::prefetch(std::span<const ListNeeds> needs) {
  if (!takes_ahead()) return;
  Completion report;
  std::erase_if(tickets_, [&](uint64_t ticket) { return services_.poll(ticket, &report); });
  const std::vector<Missing> missing = missing_of(needs);
  if (missing.empty()) return;
  uint32_t accepted = 0;
  const uint64_t ticket = start(keys_of(missing), kAhead, accepted);
  for (const Missing& one : missing) one.list->lacked = true;
  if (accepted > 0)
    tickets_.push_back(ticket);
  else
    takes_ahead_ = !tickets_.empty();
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
  release(leases);
}

void Residency::release(Block& block, const kvasir_lease& lease) {
  if (!moves_) return;
  if (lease.lease) release({lease.lease});
  if (block.lease.lease == lease.lease) block.lease.lease = 0;
}

void Residency::release(const std::vector<uint64_t>& leases) noexcept {
  if (n_keep_ > 0)
    kept_.insert(kept_.end(), leases.begin(), leases.end());
  else if (!leases.empty())
    access_.storage.release(leases);
}

void Residency::keep_released(int n) noexcept {
  n_keep_ += n;
  if (n_keep_ == 0) release_kept();
}

bool Residency::release_kept() noexcept {
  if (kept_.empty()) return false;
  access_.storage.release(std::exchange(kept_, {}));
  return true;
}

std::vector<uint64_t> Residency::busy_nanos() const {
  std::vector<uint64_t> out;
  for (const kvasir_tier_count& tier : access_.storage.count_tiers())
    out.push_back(tier.busy_nanos);
  return out;
}

// A storage may count reads when they end, also what it read before.
void Residency::add_waited(const std::vector<uint64_t>& busy, uint64_t nanos) {
  wait_nanos_ += nanos;
  const std::vector<uint64_t> now = busy_nanos();
  tier_waits_.resize(now.size());
  for (size_t i = 0; i < std::min(now.size(), busy.size()); ++i)
    tier_waits_[i] += std::min(now[i] - busy[i], nanos);
}

void Residency::count_waits(Engagement& into) {
  into.blocks_hit += std::exchange(blocks_hit_, 0);
  into.blocks_missed += std::exchange(blocks_missed_, 0);
  into.transfer_wait_nanos += std::exchange(wait_nanos_, 0);
}

void Residency::count_tiers(Engagement& into) {
  const std::vector<kvasir_tier_count> now = access_.storage.count_tiers();
  counted_.resize(now.size());
  tier_waits_.resize(now.size());
  into.tiers.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    TierTraffic& tier = into.tiers[i];
    tier.tier = now[i].name;
    tier.bytes_read += now[i].bytes_read - counted_[i].bytes_read;
    tier.bytes_written += now[i].bytes_written - counted_[i].bytes_written;
    tier.tokens += now[i].tokens - counted_[i].tokens;
    tier.n_reads += now[i].n_reads - counted_[i].n_reads;
    tier.busy_nanos += now[i].busy_nanos - counted_[i].busy_nanos;
    tier.read_nanos += now[i].read_nanos - counted_[i].read_nanos;
    tier.waited_nanos += std::exchange(tier_waits_[i], 0);
  }
  counted_ = now;
}

}  // namespace kvasir
