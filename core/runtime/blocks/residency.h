// Which sealed blocks of one storage are leased for the running step, and the transfers that bring
// the others into memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/kvasir.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plugin/host.h"
#include "core/runtime/blocks/block.h"
#include "core/runtime/blocks/block_access.h"
#include "core/runtime/step/engagement.h"

namespace kvasir {

// Lists may hold blocks of other stores as well, which all calls leave alone.
class Residency {
 public:
  // The blocks of `store`, which `access` reaches. All must outlive this; `store` is only compared
  // with Block::store.
  Residency(const BlockStore& store, const BlockAccess& access, HostServices& services);

  // How long a transfer is waited for: the longest that was asked for. What takes longer is lost.
  void wait_at_least(std::chrono::seconds timeout) {
    transfer_timeout_ = std::max(transfer_timeout_, timeout);
  }
  // False: leases are stable, everything is always resident, and most calls do nothing.
  bool moves() const { return moves_; }
  // Leases K and V of the needed tokens until release_step(); waits for transfers. The bytes of
  // other tokens are unspecified. No list comes twice. Throws PluginError when a block is lost,
  // cannot be read or does not arrive; Error(kResource) when the storage cannot hold the needed
  // blocks at one time. What it leased until then stays leased. Returns how many blocks were not
  // in memory.
  uint64_t make_resident(std::span<const ListNeeds> needs);
  // Starts to move what is not resident; never waits.
  void prefetch(std::span<const ListNeeds> needs);
  // Whether prefetch() does anything: a storage that took nothing while nothing was on its way is
  // not asked again.
  bool takes_ahead() const { return moves_ && takes_ahead_ && access_.storage.has_prefetch(); }
  // Releases the leases of sealed blocks of `list`, and those that others took the place of.
  void release_step(BlockList& list);
  // Releases what a list has leased of a block that it gives up.
  void release(Block& block, const kvasir_lease& lease);
  // One call of the storage, or none while leases are kept.
  void release(const std::vector<uint64_t>& leases) noexcept;
  // While the sum of all n is positive, released leases are kept; then one call releases them.
  void keep_released(int n) noexcept;
  // Releases what is kept. False: nothing was.
  bool release_kept() noexcept;
  // Adds blocks that were resident or not, and the time spent waiting, since the last call.
  void count_waits(Engagement& into);
  // Adds what the storage moved in and out of its tiers since the last call.
  void count_tiers(Engagement& into);

 private:
  struct Missing {
    BlockList* list;
    NeededBlock needed;
  };

  // What is not leased. Where a lease covers some tokens of a block, these are needed with those
  // that are missing, for one lease has to cover both.
  std::vector<Missing> missing_of(std::span<const ListNeeds> needs) const;
  void add_missing(BlockList& list, const NeededBlock& needed, std::vector<Missing>& missing) const;
  // They point to the tokens in `missing`, which must outlive them.
  std::vector<kvasir_block_key> keys_of(std::span<const Missing> missing) const;
  // Leases what is resident, or with KVASIR_ACQUIRE_FETCH what the storage brings in, and leaves
  // the others in `missing`; throws if one is lost, or if some are left and may_lack is false. What
  // came with a lost block is leased all the same. Returns how many were brought in.
  size_t lease_present(std::vector<Missing>& missing, uint32_t mode, bool may_lack);
  void take_lease(const Missing& missing, kvasir_lease lease);
  // Leases all of `missing`, which the storage moves into memory meanwhile.
  void fetch_missing(std::vector<Missing>& missing);
  // Moves `missing` into memory until all is there or the storage is over its budget. True: leases
  // were released or a prefetch was waited for, so another attempt may succeed.
  bool start_and_wait(std::span<const Missing> missing);
  // Asks the storage to move the first `accepted` keys; 0 when it takes none, else the ticket.
  uint64_t start(const std::vector<kvasir_block_key>& keys, uint32_t priority, uint32_t& accepted);
  void wait_for(uint64_t ticket, std::span<const kvasir_block_key> keys);
  void give_up(uint64_t ticket);  // of a transfer that takes too long
  // That tiers were read, since bind; none where there is one tier.
  std::vector<uint64_t> busy_nanos() const;
  // A step waited so long while tiers were read since `busy`.
  void add_waited(const std::vector<uint64_t>& busy, uint64_t nanos);

  const BlockStore& store_;
  const BlockAccess& access_;
  HostServices& services_;
  bool moves_;
  bool takes_ahead_ = true;
  std::chrono::seconds transfer_timeout_{0};
  std::vector<uint64_t> tickets_;  // of prefetch() that may not have been reported
  int n_keep_ = 0;                 // the sum of keep_released()
  std::vector<uint64_t> kept_;     // leases
  // Since the last count_waits().
  uint64_t blocks_hit_ = 0, blocks_missed_ = 0, wait_nanos_ = 0;
  std::vector<uint64_t> tier_waits_;        // nanoseconds by tier, since the last count_tiers()
  std::vector<kvasir_tier_count> counted_;  // at the last count_tiers()
};

}  // namespace kvasir
