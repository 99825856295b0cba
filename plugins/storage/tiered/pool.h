// Which blocks leave first: full ones of one layer memory, those of a file for the next one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <new>
#include <utility>

namespace kvasir::tiered {

// Who leaves first. kCounter is InfiniGen's (arXiv:2406.19707, section 4.4): the block that the
// fewest steps have used; when the counter of one is full, those of the layer are halved, so that
// what was used long ago fades. kLruS is InfLLM's (arXiv:2402.04617): the block with the least
// attention, of which each step leaves a share. kSelector: the one that was scored least when it
// was scored last. Of equals the one used longest ago.
enum class Victim : uint8_t { kLru, kFifo, kCounter, kLruS, kSelector };

// What the pool keeps of a block. It does not change while the block may leave.
struct PoolUse {
  uint64_t used = 0;  // when it came or, not for kFifo, was used last
  // kSelector: its score. kLruS: ln of its attention at step 0, as if that had faded since then to
  // what it is now; so it does not change while others get attention.
  double heat = -std::numeric_limits<double>::infinity();
  uint32_t n_halvings = 0;  // those of the layer that `count` knows of
  uint8_t count = 0;
  bool is_idle = false;  // may leave
};

class Pool {
 public:
  static constexpr uint8_t kFull = 255;  // of a counter

  // decay: of kLruS, what a step leaves of a block's attention, in (0, 1].
  explicit Pool(Victim victim = Victim::kLru, double decay = 1.0)
      : victim_(victim), fade_(-std::log(decay)) {}

  // Written or read back. It is worth no less than the block that leaves next, which is older, and
  // so does not leave before the step has used it.
  void came(PoolUse& use) {
    use.used = ++clock_;
    if (idle_.empty()) return;
    const double least = idle_.begin()->first.first;
    if (victim_ == Victim::kCounter) {
      use.count = static_cast<uint8_t>(std::max(count(use), static_cast<uint32_t>(least)));
      use.n_halvings = n_halvings_;
    } else if (is_told()) {
      use.heat = std::max(use.heat, least);
    }
  }
  bool is_told() const { return victim_ == Victim::kLruS || victim_ == Victim::kSelector; }
  // value: what kvasir.block-heat/1 says, 0 where it is no number; step: of that layer, which
  // counts those that told anything.
  void told(PoolUse& use, uint64_t handle, float value, uint64_t step) noexcept {
    const bool was_idle = use.is_idle;
    remove_idle(use);
    const double worth = value > 0.0f ? std::min(double{value}, 1e30) : 0.0;
    if (victim_ == Victim::kLruS) {
      const double faded = static_cast<double>(step) * fade_;
      use.heat = std::log(std::exp(use.heat - faded) + worth) + faded;
    } else {
      use.heat = worth;
    }
    if (was_idle) add_idle(use, handle);
  }
  // By a step. is_first: of its leases on the block, which is not idle.
  void used(PoolUse& use, bool is_first) {
    if (victim_ != Victim::kFifo) use.used = ++clock_;
    if (victim_ != Victim::kCounter || !is_first) return;
    use.count = static_cast<uint8_t>(count(use) + 1);
    use.n_halvings = n_halvings_;
    if (use.count < kFull) return;
    ++n_halvings_;
    halve_idle();
  }

  // Of a block that is not idle yet; it stays so where there is no memory to say it.
  void add_idle(PoolUse& use, uint64_t handle) noexcept {
    try {
      idle_.emplace(rank(use), Idle{handle, use});
      use.is_idle = true;
    } catch (const std::bad_alloc&) {
    }
  }
  void remove_idle(PoolUse& use) noexcept {
    if (std::exchange(use.is_idle, false)) idle_.erase(rank(use));
  }
  // What is kept of a block that was in `other` goes on here; it is idle in neither.
  void take_over(PoolUse& use, const Pool& other) const {
    use.count = static_cast<uint8_t>(other.count(use));  // and of kLruS and kSelector its heat
    use.n_halvings = n_halvings_;
  }
  // The idle block that leaves first; 0: there is none.
  uint64_t victim() const { return idle_.empty() ? 0 : idle_.begin()->second.handle; }

 private:
  using Rank = std::pair<double, uint64_t>;
  struct Idle {
    uint64_t handle;
    PoolUse use;
  };
  uint32_t count(const PoolUse& use) const {
    const uint32_t n = n_halvings_ - use.n_halvings;
    return n < 8 ? uint32_t{use.count} >> n : 0;
  }
  Rank rank(const PoolUse& use) const {
    return {is_told() ? use.heat : static_cast<double>(count(use)), use.used};
  }
  // Two that differed may be equals now.
  void halve_idle() noexcept {
    std::map<Rank, Idle> before;
    before.swap(idle_);
    while (!before.empty()) {
      auto node = before.extract(before.begin());
      node.key() = rank(node.mapped().use);
      idle_.insert(std::move(node));
    }
  }

  Victim victim_;
  double fade_;
  uint64_t clock_ = 0;
  uint32_t n_halvings_ = 0;
  std::map<Rank, Idle> idle_;
};

}  // namespace kvasir::tiered
