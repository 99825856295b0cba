// Which block leaves memory: the pool of kvasir.tiered beside an account that keeps every counter
// as it is and looks at all blocks.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/storage/tiered/pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
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

  TEST_CASE("what attention leaves fades for all alike, scores replace each other") {
    for (const Victim victim : {Victim::kLruS, Victim::kSelector})
      for (const double decay : {1.0, 0.5, 0.1, 1e-6}) {
        CAPTURE(static_cast<int>(victim));
        CAPTURE(decay);
        std::mt19937 random(11);
        std::uniform_real_distribution<float> mass(0.0f, 1.0f);
        Pool pool(victim, decay);
        std::vector<PoolUse> uses(30);
        std::vector<double> worth(uses.size());  // handle i is block i
        const auto least = [&] {
          double out = std::numeric_limits<double>::infinity();
          for (size_t i = 1; i < uses.size(); ++i)
            if (uses[i].is_idle) out = std::min(out, worth[i]);
          return out;
        };
        for (size_t i = 1; i < uses.size(); ++i) {
          pool.came(uses[i]);
          pool.add_idle(uses[i], i);
        }
        CHECK(pool.victim() == 1);  // of equals the one that came first
        for (uint64_t step = 1; step < 4000; ++step) {
          if (victim == Victim::kLruS)
            for (double& w : worth) w *= decay;
          for (size_t i = 1; i < uses.size(); ++i) {
            if (random() % 4 != 0) continue;
            const float value = mass(random) * (random() % 8 == 0 ? 0.0f : 1.0f);
            const bool leased = random() % 2 == 0;
            if (leased) pool.remove_idle(uses[i]), pool.used(uses[i], true);
            pool.told(uses[i], i, value, step);
            if (leased) pool.add_idle(uses[i], i);
            worth[i] = double{value} + (victim == Victim::kLruS ? worth[i] : 0.0);
          }
          const uint64_t left = pool.victim();
          REQUIRE(left != 0);
          REQUIRE(worth[left] <= least() * (1.0 + 1e-9) + 1e-290);
          pool.remove_idle(uses[left]);
          if (random() % 2 == 0) {  // and back: worth no less than who leaves next
            worth[left] = std::max(worth[left], least());
            pool.came(uses[left]);
          }
          pool.add_idle(uses[left], left);
        }
      }
  }

  TEST_CASE("what is told and no number is worth nothing") {
    Pool pool(Victim::kSelector);
    PoolUse bad, good;
    pool.came(bad);
    pool.came(good);
    pool.add_idle(good, 2);
    pool.add_idle(bad, 1);
    pool.told(good, 2, 1e-9f, 1);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), -1.0f, 0.0f}) {
      pool.told(bad, 1, value, 1);
      CHECK(pool.victim() == 1);
    }
    pool.told(bad, 1, std::numeric_limits<float>::infinity(), 1);
    CHECK(pool.victim() == 2);
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
