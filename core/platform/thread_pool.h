// One pool of pinned workers, one per physical core of the process's cpuset, grouped by NUMA node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/platform/topology.h"

namespace kvasir {

// The calling thread takes part as worker 0 (bound to its core on construction unless `bind` is
// false); the others sleep between regions after a short spin. A worker that another process keeps
// from its core costs the others what it does not do itself, and no time slice per region. Regions
// are not re-entrant: a call from inside a region runs its loop serially on the calling worker, in
// the same pieces. Threads may share a pool: their regions run one after the other, each caller
// being worker 0 of its own.
class ThreadPool {
 public:
  // n_threads = 0: one worker per physical core in `topology`; fewer are spread over the nodes in
  // proportion to their cores; more than cores wrap over the cores and stay unbound. `topology` is
  // not kept. The destructor unbinds the calling thread when it is the one that constructed.
  explicit ThreadPool(const Topology& topology, uint32_t n_threads = 0, bool bind = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t n_workers() const;
  // NUMA node of a worker: index into Topology::nodes(), dense, never falling from worker to
  // worker.
  uint32_t node_of(uint32_t worker) const;
  bool spans_nodes() const { return node_of(0) != node_of(n_workers() - 1); }
  // The same node as the operating system numbers it; -1 when workers are not bound to cores.
  int os_node_of(uint32_t worker) const;

  // fn(begin, end, worker) over [0, n_tasks) in pieces of at most `grain` (0 = even static split,
  // one piece per worker). Blocks until done. The calling thread may do the piece of another worker
  // that is late, as that worker: no two pieces with the same `worker` run at the same time. The
  // first exception thrown by fn is rethrown here after all workers have stopped.
  using Body = std::function<void(uint64_t begin, uint64_t end, uint32_t worker)>;
  void parallel_for(uint64_t n_tasks, uint64_t grain, const Body& fn);

  // parallel_for(n_tasks, 0, fn) in which each piece is done by the thread of its worker, however
  // late that one is: for memory that lies where it is first touched.
  void for_own_shares(uint64_t n_tasks, const Body& fn);

  // parallel_for(n_tasks, 0, fn) whose shares are done in pieces, front to back. Who is done takes
  // the last tasks that workers of his node have not begun, one by one: for long tasks whose memory
  // lies with the worker of the share.
  void for_balanced_shares(uint64_t n_tasks, const Body& fn);

  // fn(worker) exactly once on every worker: per-thread set-up, node-local first touch.
  // Throws Error(kInternal) from inside a region.
  void run_on_all(const std::function<void(uint32_t worker)>& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
