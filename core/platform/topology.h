// What the machine looks like to this process: packages, NUMA nodes, physical cores, after cpusets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvasir {

struct Core {
  uint32_t os_cpu;  // first hardware thread of the physical core that this process may run on
  uint32_t node;    // index into Topology::nodes()
};

struct NumaNode {
  uint32_t os_index;      // what libnuma and the kernel call it
  uint64_t memory_bytes;  // 0 when unknown
  uint32_t n_cores;       // physical cores usable by this process
};

// Whose cores are used: those of all nodes, or of the one that the calling thread runs on.
enum class NodeUse { kAll, kOne };

class Topology {
 public:
  static Topology detect(NodeUse use = NodeUse::kAll);
  // hwloc synthetic description ("numa:2 core:4 pu:2"), for tests: nothing is bound on it, and the
  // one node is the first.
  static Topology synthetic(const std::string& description, NodeUse use = NodeUse::kAll);
  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;
  ~Topology();

  const std::vector<Core>& cores() const;  // by node, then by core
  const std::vector<NumaNode>& nodes() const;
  bool is_synthetic() const;
  std::string summary() const;  // "1 package, 1 NUMA node, 2 cores (2 usable), 2 hardware threads"

  // Binds the calling thread to one core; false (and no change) when synthetic or refused.
  bool bind_this_thread(const Core& core) const;
  // Gives the calling thread all CPUs of this topology. For threads that a bound thread started
  // (a server's, another library's): they inherit its one core.
  bool unbind_this_thread() const;

 private:
  Topology();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
