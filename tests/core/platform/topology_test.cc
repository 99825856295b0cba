// Topology: what synthetic machines must look like, and that detection obeys the affinity mask.
// SPDX-License-Identifier: Apache-2.0
#include "core/platform/topology.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "core/error.h"

TEST_SUITE_BEGIN("core/platform/topology");

namespace kvasir {
namespace {

std::set<uint32_t> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::set<uint32_t> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.insert(static_cast<uint32_t>(cpu));
  }
  return cpus;
}

// Before any test ran: a pool that leaves its caller bound must not pass for a machine of one CPU.
const std::set<uint32_t> allowed_at_start = allowed_cpus();

// Runs `check` in a child process restricted to one CPU; true when it held there.
template <class Check>
bool holds_on_one_cpu(uint32_t cpu, Check check) {
  std::fflush(nullptr);  // or the child prints the buffered lines once more
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    bool ok = sched_setaffinity(0, sizeof set, &set) == 0;
    try {
      ok = ok && check();
    } catch (...) {
      ok = false;
    }
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void check_shape(const std::string& description, uint32_t n_nodes, uint32_t cores_per_node,
                 uint32_t pus_per_core) {
  CAPTURE(description);
  const Topology topology = Topology::synthetic(description);
  CHECK(topology.is_synthetic());
  REQUIRE(topology.nodes().size() == n_nodes);
  REQUIRE(topology.cores().size() == n_nodes * cores_per_node);
  for (uint32_t i = 0; i < n_nodes; ++i) {
    CHECK(topology.nodes()[i].os_index == i);
    CHECK(topology.nodes()[i].n_cores == cores_per_node);
  }
  for (uint32_t i = 0; i < topology.cores().size(); ++i) {
    CHECK(topology.cores()[i].os_cpu == i * pus_per_core);
    CHECK(topology.cores()[i].node == i / cores_per_node);
  }
}

TEST_CASE("synthetic machines have the described nodes and one entry per physical core") {
  check_shape("numa:2 core:4 pu:2", 2, 4, 2);
  check_shape("numa:4 core:2 pu:1", 4, 2, 1);
  check_shape("package:2 numa:1 core:3 pu:4", 2, 3, 4);
  check_shape("core:4 pu:2", 1, 4, 2);  // hwloc adds the one node itself
}

TEST_CASE("one node of several can be taken, the first of a synthetic machine") {
  const Topology topology = Topology::synthetic("numa:3 core:4 pu:2", NodeUse::kOne);
  REQUIRE(topology.nodes().size() == 1);
  CHECK(topology.nodes()[0].os_index == 0);
  CHECK(topology.cores().size() == 4);
  CHECK(Topology::synthetic("core:4 pu:1", NodeUse::kOne).cores().size() == 4);
}

TEST_CASE(
    "the one node of this machine has all its usable cores, and is that of the process's CPU") {
  const Topology all = Topology::detect();
  for (const Core& core : all.cores()) {
    const uint32_t node = all.nodes()[core.node].os_index;
    CHECK(holds_on_one_cpu(core.os_cpu, [&] {
      const Topology one = Topology::detect(NodeUse::kOne);
      return one.cores().size() == 1 && one.nodes()[0].os_index == node;
    }));
  }
  const Topology one = Topology::detect(NodeUse::kOne);
  REQUIRE(one.nodes().size() == 1);
  const auto same = std::find_if(all.nodes().begin(), all.nodes().end(), [&](const NumaNode& node) {
    return node.os_index == one.nodes()[0].os_index;
  });
  REQUIRE(same != all.nodes().end());
  CHECK(one.cores().size() == same->n_cores);
}

TEST_CASE("hardware threads count as cores where no cores are described") {
  check_shape("numa:2 pu:3", 2, 3, 1);
}

TEST_CASE("memory sizes come from the description") {
  const Topology topology = Topology::synthetic("[numa(memory=1073741824)] core:2 pu:1");
  REQUIRE(topology.nodes().size() == 1);
  CHECK(topology.nodes()[0].memory_bytes == 1073741824);
}

TEST_CASE("the summary counts packages, nodes, cores and hardware threads") {
  CHECK(Topology::synthetic("package:1 numa:1 core:1 pu:2").summary() ==
        "1 package, 1 NUMA node, 1 core (1 usable), 2 hardware threads");
  CHECK(Topology::synthetic("package:2 numa:2 core:4 pu:2").summary() ==
        "2 packages, 4 NUMA nodes, 16 cores (16 usable), 32 hardware threads");
}

TEST_CASE("an invalid description is an input error that quotes it") {
  for (const char* description : {"", "nonsense", "numa:2 core:4", "numa:0 pu:1", "pu:2 numa:2"}) {
    CAPTURE(description);
    try {
      Topology::synthetic(description);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kInput);
      CHECK(std::string(error.what()).find("\"" + std::string(description) + "\"") !=
            std::string::npos);
    }
  }
}

TEST_CASE("nothing is bound on a synthetic machine") {
  const auto before = allowed_cpus();
  const Topology topology = Topology::synthetic("numa:2 core:4 pu:2");
  for (const Core& core : topology.cores()) CHECK_FALSE(topology.bind_this_thread(core));
  CHECK_FALSE(topology.unbind_this_thread());
  CHECK(allowed_cpus() == before);
}

TEST_CASE("detection finds this machine, within the affinity mask, nodes in order") {
  const auto allowed = allowed_cpus();
  CHECK(!allowed.empty());
  CHECK(allowed == allowed_at_start);
  const Topology topology = Topology::detect();
  CHECK_FALSE(topology.is_synthetic());
  REQUIRE(!topology.cores().empty());
  REQUIRE(!topology.nodes().empty());
  std::set<uint32_t> seen;
  std::vector<uint32_t> n_of_node(topology.nodes().size(), 0);
  uint32_t node = 0;
  for (const Core& core : topology.cores()) {
    CHECK(allowed.count(core.os_cpu) == 1);
    CHECK(seen.insert(core.os_cpu).second);
    CHECK(core.node >= node);
    node = core.node;
    REQUIRE(core.node < n_of_node.size());
    ++n_of_node[core.node];
  }
  for (size_t i = 0; i < n_of_node.size(); ++i) {
    CHECK(topology.nodes()[i].n_cores == n_of_node[i]);
    CHECK(n_of_node[i] > 0);
  }
}

TEST_CASE("a process restricted to one CPU sees exactly that one") {
  for (const uint32_t cpu : allowed_cpus()) {
    CAPTURE(cpu);
    CHECK(holds_on_one_cpu(cpu, [cpu] {
      const Topology topology = Topology::detect();
      return topology.cores().size() == 1 && topology.cores()[0].os_cpu == cpu &&
             topology.nodes().size() == 1 && topology.nodes()[0].n_cores == 1 &&
             topology.summary().find("(1 usable)") != std::string::npos;
    }));
  }
}

TEST_CASE("binding restricts the thread to the core, and detection still sees the whole mask") {
  const auto before = allowed_cpus();
  const Topology topology = Topology::detect();
  for (const Core& core : topology.cores()) {
    REQUIRE(topology.bind_this_thread(core));
    CHECK(allowed_cpus() == std::set<uint32_t>{core.os_cpu});
    CHECK(Topology::detect().cores().size() == topology.cores().size());
  }
  CHECK(topology.unbind_this_thread());
  CHECK(allowed_cpus() == before);
}

}  // namespace
}  // namespace kvasir
