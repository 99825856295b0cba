// Topology over hwloc: hwloc's allowed set, narrowed by the calling thread's affinity.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/platform/affinity.h"

namespace kvasir {
namespace {

struct BitmapFree {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapFree>;

std::string counted(int n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

// The PUs this process may use: the cpuset hwloc sees and, on this system, the thread's affinity.
Bitmap usable_cpus(hwloc_topology_t topology, bool this_system) {
  Bitmap usable(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology)));
  if (!usable) throw Error(ErrorKind::kResource, "out of memory while reading the topology");
  const CpuMask mask = thread_affinity_before_binding();
  if (!this_system || mask.count() == 0) return usable;
  unsigned cpu;
  hwloc_bitmap_foreach_begin(cpu, hwloc_topology_get_topology_cpuset(topology)) {
    if (!mask.test(cpu)) hwloc_bitmap_clr(usable.get(), cpu);
  }
  hwloc_bitmap_foreach_end();
  return usable;
}

// Index into `nodes` of the first node local to this CPU; 0 where the local one is not allowed.
uint32_t node_of_cpu(const std::vector<hwloc_obj_t>& nodes, unsigned cpu) {
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (hwloc_bitmap_isset(nodes[node]->cpuset, cpu)) return static_cast<uint32_t>(node);
  }
  return 0;
}

}  // namespace

struct Topology::Impl {
  hwloc_topology_t topology = nullptr;
  bool this_system = false;
  Bitmap usable;
  std::vector<Core> cores;
  std::vector<NumaNode> nodes;
  std::string summary;

  Impl() {
    if (hwloc_topology_init(&topology) != 0) {
      throw Error(ErrorKind::kResource, "hwloc cannot be initialised: out of memory");
    }
  }
  ~Impl() { hwloc_topology_destroy(topology); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void load(NodeUse use);
  std::vector<hwloc_obj_t> allowed_nodes() const;
  void keep_one_node(const std::vector<hwloc_obj_t>& node_objects);
  void read_cores(const std::vector<hwloc_obj_t>& node_objects);
  void read_nodes(const std::vector<hwloc_obj_t>& node_objects);
  void write_summary();
};

void Topology::Impl::load(NodeUse use) {
  // Disallowed objects stay in, so that the summary can say "64 cores (2 usable)".
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(topology) != 0) {
    throw Error(ErrorKind::kResource, std::string("hwloc cannot read this machine's topology: ") +
                                          std::strerror(errno) +
                                          "; check that /sys and /proc are mounted");
  }
  this_system = hwloc_topology_is_thissystem(topology) != 0;
  usable = usable_cpus(topology, this_system);
  const auto node_objects = allowed_nodes();
  if (use == NodeUse::kOne) keep_one_node(node_objects);
  read_cores(node_objects);
  read_nodes(node_objects);
  write_summary();
}

std::vector<hwloc_obj_t> Topology::Impl::allowed_nodes() const {
  std::vector<hwloc_obj_t> objects;
  const auto* allowed = hwloc_topology_get_allowed_nodeset(topology);
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (hwloc_bitmap_isset(allowed, node->os_index)) objects.push_back(node);
  }
  return objects;
}

// The node of the CPU that the thread is on at this moment; where that is none of the usable ones,
// of the first that is.
void Topology::Impl::keep_one_node(const std::vector<hwloc_obj_t>& node_objects) {
  const int running_on = this_system ? sched_getcpu() : -1;
  const bool is_usable =
      running_on >= 0 && hwloc_bitmap_isset(usable.get(), static_cast<unsigned>(running_on));
  const int cpu = is_usable ? running_on : hwloc_bitmap_first(usable.get());
  if (cpu < 0 || node_objects.empty()) return;
  const hwloc_obj* node = node_objects[node_of_cpu(node_objects, static_cast<unsigned>(cpu))];
  hwloc_bitmap_and(usable.get(), usable.get(), node->cpuset);
}

void Topology::Impl::read_cores(const std::vector<hwloc_obj_t>& node_objects) {
  // Some virtual machines describe hardware threads only: then each of them counts as a core.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const auto type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  const Bitmap mine(hwloc_bitmap_alloc());
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr;) {
    hwloc_bitmap_and(mine.get(), core->cpuset, usable.get());
    const int cpu = hwloc_bitmap_first(mine.get());
    if (cpu < 0) continue;
    const auto os_cpu = static_cast<uint32_t>(cpu);
    cores.push_back({os_cpu, node_of_cpu(node_objects, os_cpu)});
  }
  if (cores.empty()) {
    throw Error(ErrorKind::kResource,
                "no usable CPU: the cpuset and the affinity of this process do not intersect");
  }
  std::stable_sort(cores.begin(), cores.end(),
                   [](const Core& a, const Core& b) { return a.node < b.node; });
}

// Keeps the nodes that own a usable core and renumbers Core::node into what is kept.
void Topology::Impl::read_nodes(const std::vector<hwloc_obj_t>& node_objects) {
  uint32_t previous = UINT32_MAX;
  for (Core& core : cores) {
    if (core.node != previous) {
      previous = core.node;
      if (node_objects.empty()) {
        nodes.push_back({0, 0, 0});
      } else {
        const hwloc_obj* object = node_objects[core.node];
        nodes.push_back({object->os_index, object->attr->numanode.local_memory, 0});
      }
    }
    core.node = static_cast<uint32_t>(nodes.size() - 1);
    ++nodes.back().n_cores;
  }
}

void Topology::Impl::write_summary() {
  const auto count = [this](hwloc_obj_type_t type) {
    return hwloc_get_nbobjs_by_type(topology, type);
  };
  const int n_pus = count(HWLOC_OBJ_PU);
  const int n_cores = count(HWLOC_OBJ_CORE) > 0 ? count(HWLOC_OBJ_CORE) : n_pus;
  summary = counted(std::max(count(HWLOC_OBJ_PACKAGE), 1), "package") + ", " +
            counted(std::max(count(HWLOC_OBJ_NUMANODE), 1), "NUMA node") + ", " +
            counted(n_cores, "core") + " (" + std::to_string(cores.size()) + " usable), " +
            counted(n_pus, "hardware thread");
}

Topology::Topology() : impl_(std::make_unique<Impl>()) {}
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;
Topology::~Topology() = default;

Topology Topology::detect(NodeUse use) {
  Topology topology;
  topology.impl_->load(use);
  return topology;
}

Topology Topology::synthetic(const std::string& description, NodeUse use) {
  Topology topology;
  if (hwloc_topology_set_synthetic(topology.impl_->topology, description.c_str()) != 0) {
    throw input_error("\"" + description +
                      "\" is no hwloc synthetic topology; write it like \"numa:2 core:4 pu:2\", "
                      "ending in pu");
  }
  topology.impl_->load(use);
  return topology;
}

const std::vector<Core>& Topology::cores() const { return impl_->cores; }
const std::vector<NumaNode>& Topology::nodes() const { return impl_->nodes; }
bool Topology::is_synthetic() const { return !impl_->this_system; }
std::string Topology::summary() const { return impl_->summary; }

bool Topology::bind_this_thread(const Core& core) const {
  if (is_synthetic()) return false;
  const Bitmap set(hwloc_bitmap_alloc());
  if (!set || hwloc_bitmap_only(set.get(), core.os_cpu) != 0) return false;
  remember_thread_affinity();
  return hwloc_set_cpubind(impl_->topology, set.get(), HWLOC_CPUBIND_THREAD) == 0;
}

bool Topology::unbind_this_thread() const {
  if (is_synthetic()) return false;
  return hwloc_set_cpubind(impl_->topology, impl_->usable.get(), HWLOC_CPUBIND_THREAD) == 0;
}

}  // namespace kvasir
