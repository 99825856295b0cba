// Which block leaves memory: the pool of kvasir.tiered beside an account that keeps every counter
// as it is and looks at all blocks.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {
using namespace kvasir::tiered;

struct Account {
  uint64_t used = 0;
  uint32_t count = 0;
  bool is_idle = false;
};

uint64_t victim_of(const std::vector<Account>& blocks, Victim victim) {
  uint64_t out = 0;
  for (uint64_t i = 1; i < blocks.size(); ++i) {
    if (!blocks[i].is_idle) continue;
    const auto before = [&](const Account& a, const Account& b) {
      if (victim == Victim::kCounter && a.count != b.count) return a.count < b.count;
      return a.used < b.used;
    };
    if (out == 0 || before(blocks[i], blocks[out])) out = i;
  }
  return out;
}

}  // namespace

TEST_SUITE("plugins/storage/pool") {
  TEST_CASE("victims are those of an account that halves every counter when one is full") {
    for (const Victim victim : {Victim::kLru, Victim::kFifo, Victim::kCounter}) {
      CAPTURE(static_cast<int>(victim));
      std::mt19937 random(7);
      Pool pool(victim);
      std::vector<PoolUse> uses(25);
      std::vector<Account> account(25);
      uint64_t clock = 0, n_halved = 0;
      for (uint64_t i = 1; i < uses.size(); ++i) {
        pool.came(uses[i]);
        account[i].used = ++clock;
      }
      for (int step = 0; step < 20000; ++step) {
        // A few blocks are used much more than the others.
        const uint64_t i = 1 + std::min(random() % 24, random() % 24) * (random() % 4 != 0);
        const uint64_t what = random() % 10;
        pool.remove_idle(uses[i]);
        account[i].is_idle = false;
        if (what == 0) {
          if (const uint64_t next = victim_of(account, victim); next != 0)
            account[i].count = std::max(account[i].count, account[next].count);
          pool.came(uses[i]);
          account[i].used = ++clock;
        } else {
          const bool is_first = what != 1;
          pool.used(uses[i], is_first);
          if (victim != Victim::kFifo) account[i].used = ++clock;
          if (is_first && ++account[i].count == Pool::kFull) {
            for (Account& block : account) block.count /= 2;
            ++n_halved;
          }
        }
        if (what != 2) {
          pool.add_idle(uses[i], i);
          account[i].is_idle = true;
        }
        REQUIRE(pool.victim() == victim_of(account, victim));
        if (what == 3 && pool.victim() != 0) {
          const uint64_t left = pool.victim();
          pool.remove_idle(uses[left]);
          account[left].is_idle = false;
          REQUIRE(pool.victim() == victim_of(account, victim));
        }
      }
      CHECK(n_halved > 5);
    }
  }

  TEST_CASE("an empty pool has no victim, and a block that may leave can stay again") {
    Pool pool;
    PoolUse use;
    CHECK(pool.victim() == 0);
    pool.came(use);
    pool.add_idle(use, 42);
    CHECK(pool.victim() == 42);
    pool.remove_idle(use);
    pool.remove_idle(use);
    CHECK(pool.victim() == 0);
  }
}
