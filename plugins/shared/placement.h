// Which memory node the workers that read a kv head are on: said once, so that the storage places
// blocks where the backend reads them.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/host.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvasir::sdk {

// The kv heads of a call are equal parts of [0, 1), and so are the workers: worker w does the work
// that lies in [w / n_workers, (w + 1) / n_workers). Workers of a node are neighbours, so a node
// gets neighbouring heads, as many as its workers can do; a head on the border belongs to two
// nodes.
class HeadPlacement {
 public:
  // node_of_worker: as the operating system numbers them; a negative one makes all unknown.
  HeadPlacement(std::vector<int32_t> node_of_worker, uint32_t n_kv_heads)
      : node_of_worker_(std::move(node_of_worker)), n_kv_heads_(n_kv_heads) {
    const auto unknown = [](int32_t node) { return node < 0; };
    if (!std::any_of(node_of_worker_.begin(), node_of_worker_.end(), unknown)) {
      nodes_ = node_of_worker_;
      std::sort(nodes_.begin(), nodes_.end());
      nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
    }
  }
  HeadPlacement(const Host& host, uint32_t n_kv_heads)
      : HeadPlacement(nodes_of_workers(host), n_kv_heads) {}

  // 0 when unknown: nothing to place.
  uint32_t n_nodes() const { return static_cast<uint32_t>(nodes_.size()); }

  // Nodes whose workers read the head, ascending; empty when unknown.
  std::vector<int32_t> nodes_of(uint32_t kv_head) const {
    if (nodes_.empty()) return {};
    const uint64_t workers = node_of_worker_.size();
    const uint64_t begin = kv_head * workers / n_kv_heads_;
    const uint64_t end = ((kv_head + 1) * workers + n_kv_heads_ - 1) / n_kv_heads_;
    std::vector<int32_t> nodes(node_of_worker_.begin() + static_cast<std::ptrdiff_t>(begin),
                               node_of_worker_.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
  }

  // Numbers the nodes 0 … max(n_nodes(), 1) - 1: of a worker, and of the worker that the middle of
  // part `part` of `n_parts` equal parts of a head's work falls to.
  uint32_t group_of_worker(uint32_t worker) const {
    const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), node_of_worker_[worker]);
    return static_cast<uint32_t>(at - nodes_.begin());
  }
  uint32_t group_of(uint32_t kv_head, uint64_t part, uint64_t n_parts) const {
    const uint64_t halves = 2 * (kv_head * n_parts + part) + 1;  // of a part, from the first head
    return group_of_worker(
        static_cast<uint32_t>(halves * node_of_worker_.size() / (2 * n_parts * n_kv_heads_)));
  }

 private:
  static std::vector<int32_t> nodes_of_workers(const Host& host) {
    std::vector<int32_t> nodes(host.max_workers());
    for (uint32_t worker = 0; worker < nodes.size(); ++worker) nodes[worker] = host.node_of(worker);
    return nodes;
  }

  std::vector<int32_t> node_of_worker_;
  std::vector<int32_t> nodes_;  // ascending, each once
  uint32_t n_kv_heads_;
};

}  // namespace kvasir::sdk
