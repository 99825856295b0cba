// Work handed out near the memory it reads: each worker empties the queue of its own memory node,
// then helps the other nodes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvasir::attention {

class NodeQueues {
 public:
  explicit NodeQueues(uint32_t n_nodes) : n_nodes_(n_nodes), queues_(new Queue[n_nodes]) {}

  // Items 0 … n_items - 1, in this order within the queue of node_of(item).
  template <class NodeOf>
  void fill(uint64_t n_items, const NodeOf& node_of) {
    items_.resize(n_items);
    for (uint32_t node = 0; node < n_nodes_; ++node) queues_[node].end = 0;
    for (uint64_t item = 0; item < n_items; ++item) ++queues_[node_of(item)].end;
    uint64_t begin = 0;
    for (uint32_t node = 0; node < n_nodes_; ++node) {
      queues_[node].next.store(begin, std::memory_order_relaxed);
      begin += queues_[node].end;
      queues_[node].end = begin;
    }
    std::vector<uint64_t> at(n_nodes_);
    for (uint32_t node = 0; node < n_nodes_; ++node) at[node] = queues_[node].next;
    for (uint64_t item = 0; item < n_items; ++item) items_[at[node_of(item)]++] = item;
  }

  // Some item that nobody has had yet. Any thread, until the next fill().
  std::optional<uint64_t> take(uint32_t node) {
    for (uint32_t i = 0; i < n_nodes_; ++i) {
      Queue& queue = queues_[(node + i) % n_nodes_];
      const uint64_t at = queue.next.fetch_add(1, std::memory_order_relaxed);
      if (at < queue.end) return items_[at];
    }
    return std::nullopt;
  }

 private:
  struct alignas(64) Queue {
    std::atomic<uint64_t> next{0};  // into items_
    uint64_t end = 0;
  };
  uint32_t n_nodes_;
  std::unique_ptr<Queue[]> queues_;
  std::vector<uint64_t> items_;
};

}  // namespace kvasir::attention
