// Work queues by memory node: nothing lost, nothing twice, one's own node first.
// SPDX-License-Identifier: Apache-2.0
#include "plugins/attention/cpu/node_queues.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace {
using kvasir::attention::NodeQueues;

TEST_SUITE("plugins/attention") {
  TEST_CASE("a worker takes its own node's items in their order, then those of the next nodes") {
    NodeQueues queues(3);
    const std::vector<uint32_t> node_of = {2, 0, 1, 0, 2, 1};
    for (int round = 0; round < 2; ++round) {  // queues are filled again and again
      queues.fill(node_of.size(), [&](uint64_t item) { return node_of[item]; });
      std::vector<uint64_t> taken;
      while (const auto item = queues.take(1)) taken.push_back(*item);
      CHECK(taken == std::vector<uint64_t>{2, 5, 0, 4, 1, 3});
      CHECK_FALSE(queues.take(0).has_value());
    }
    queues.fill(0, [](uint64_t) { return 0u; });
    CHECK_FALSE(queues.take(2).has_value());
  }

  TEST_CASE("workers that take at once get every item exactly once") {
    constexpr uint32_t kNodes = 2, kWorkers = 4;
    NodeQueues queues(kNodes);
    for (const uint64_t n_items : {1u, 7u, 5000u}) {
      queues.fill(n_items, [](uint64_t item) { return item % 5 == 0 ? 1u : 0u; });
      std::vector<std::vector<uint64_t>> taken(kWorkers);
      std::vector<std::thread> workers;
      for (uint32_t w = 0; w < kWorkers; ++w)
        workers.emplace_back([&, w] {
          while (const auto item = queues.take(w % kNodes)) taken[w].push_back(*item);
        });
      for (std::thread& worker : workers) worker.join();
      std::vector<uint64_t> all, expected(n_items);
      for (const auto& part : taken) all.insert(all.end(), part.begin(), part.end());
      std::sort(all.begin(), all.end());
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(all == expected);
    }
  }
}

}  // namespace
