// What `kvasir doctor` reports: processor, NUMA nodes, memory, CUDA devices, plugins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/platform/cpu_features.h"
#include "core/platform/memory.h"
#include "core/platform/system_report.h"
#include "core/platform/topology.h"
#include "core/plugin/registry.h"
#include "tools/kvasir/cli/options.h"
#include "tools/kvasir/cli/print.h"
#include "tools/kvasir/system/cuda_report.h"

namespace kvasir::tool {

struct CpuReport {
  CpuFeatures features;
  std::string simd_target;           // of the kernels
  std::vector<std::string> compute;  // of dense layers, the default first
  std::string topology;
  uint32_t n_workers = 0;
  std::optional<double> quota;  // of a cgroup, in CPUs
};

struct MachineReport {
  std::string version;  // of Kvasir
  CpuReport cpu;
  NumaStatus numa;
  std::vector<NumaNode> nodes;
  MemoryInfo memory{};
  HugePageStatus huge_pages;
  std::optional<double> read_bandwidth;  // bytes per second; none: not measured
  CudaReport cuda;
  PluginSearch plugin_search;
  uint32_t n_usable = 0, n_shadowed = 0, n_refused = 0;  // plugin files
};

// quick: the memory bandwidth is not measured.
MachineReport machine_report(const Options& options, bool quick);

Json to_json(const MachineReport& report);
std::string to_text(const MachineReport& report);

}  // namespace kvasir::tool
