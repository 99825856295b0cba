// A machine's report as JSON and as a table.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/system/machine_report.h"

namespace kvasir::tool {
namespace {

const char* transparent_pages(const HugePageStatus& huge) {
  return huge.thp_mode.empty() ? "absent" : huge.thp_mode.c_str();
}

std::string compute_capability(const CudaDevice& device) {
  return format("%u.%u", device.compute_major, device.compute_minor);
}

Json cpu_json(const CpuReport& cpu) {
  Json out{{"model", cpu.features.model},     {"vendor", cpu.features.vendor},
           {"features", cpu.features.list()}, {"simd_target", cpu.simd_target},
           {"compute", cpu.compute},          {"topology", cpu.topology},
           {"n_workers", cpu.n_workers}};
  if (cpu.quota) out["cpu_quota"] = *cpu.quota;
  return out;
}

Json numa_json(const MachineReport& r) {
  Json nodes = Json::array();
  for (const NumaNode& node : r.nodes)
    nodes.push_back(
        {{"node", node.os_index}, {"memory_bytes", node.memory_bytes}, {"n_cores", node.n_cores}});
  return {{"available", r.numa.available},
          {"can_place", r.numa.can_place},
          {"balancing", r.numa.balancing},
          {"nodes", nodes}};
}

Json memory_json(const MachineReport& r) {
  const HugePageStatus& huge = r.huge_pages;
  Json out{{"total_bytes", r.memory.total_bytes},
           {"available_bytes", r.memory.available_bytes},
           {"huge_pages",
            {{"transparent", transparent_pages(huge)},
             {"defrag", huge.thp_defrag},
             {"explicit_2mib_free", huge.free_2mib},
             {"explicit_2mib_total", huge.total_2mib},
             {"explicit_1gib_total", huge.total_1gib}}}};
  if (r.read_bandwidth) out["read_bandwidth_bytes_per_second"] = *r.read_bandwidth;
  return out;
}

Json cuda_json(const CudaReport& cuda) {
  Json out{{"built", cuda.is_built},
           {"runtime", cuda.runtime},
           {"driver", cuda.driver},
           {"problem", cuda.problem},
           {"devices", Json::array()}};
  for (const CudaDevice& device : cuda.devices)
    out["devices"].push_back({{"name", device.name},
                              {"compute_capability", compute_capability(device)},
                              {"memory_bytes", device.memory_bytes},
                              {"free_bytes", device.free_bytes}});
  return out;
}

Json plugins_json(const MachineReport& r) {
  Json searched = Json::array();
  for (const auto& level : r.plugin_search.levels)
    for (const std::string& directory : level.directories)
      searched.push_back({{"level", level.label}, {"directory", directory}});
  return {{"searched", searched},
          {"usable", r.n_usable},
          {"shadowed", r.n_shadowed},
          {"refused", r.n_refused}};
}

std::string machine_text(const MachineReport& r) {
  const CpuReport& cpu = r.cpu;
  const HugePageStatus& huge = r.huge_pages;
  Table table({"kvasir", r.version});
  table.add({"cpu", cpu.features.model});
  table.add({"features", cpu.features.list()});
  table.add({"kernels run on", cpu.simd_target});
  table.add({"dense layers in", join(cpu.compute, " or ")});
  table.add({"topology", cpu.topology});
  table.add({"workers", std::to_string(cpu.n_workers)});
  if (cpu.quota) table.add({"cpu quota", Json(*cpu.quota).dump() + " CPUs"});
  table.add({"numa", format("%zu node(s), placement %s%s", r.nodes.size(),
                            r.numa.can_place ? "possible" : "not permitted",
                            r.numa.balancing ? ", kernel balancing is on" : "")});
  table.add({"memory", bytes_text(r.memory.total_bytes) + " total, " +
                           bytes_text(r.memory.available_bytes) + " available"});
  if (r.read_bandwidth)
    table.add({"read bandwidth",
               format("%.1f GB/s with all workers, measured now", *r.read_bandwidth / 1e9)});
  table.add({"huge pages",
             format("transparent: %s; explicit 2 MiB: %llu of %llu free", transparent_pages(huge),
                    static_cast<unsigned long long>(huge.free_2mib),
                    static_cast<unsigned long long>(huge.total_2mib))});
  return table.text();
}

std::string devices_and_plugins_text(const MachineReport& r) {
  const CudaReport& cuda = r.cuda;
  Table table({"cuda", cuda.problem.empty() ? "runtime " + cuda.runtime + ", driver " + cuda.driver
                                            : cuda.problem});
  for (const CudaDevice& device : cuda.devices)
    table.add({"  device", device.name + ", compute " + compute_capability(device) + ", " +
                               bytes_text(device.memory_bytes) + ", " +
                               bytes_text(device.free_bytes) + " free"});
  table.add({"plugins", format("%u usable, %u shadowed, %u refused (kvasir plugin list)",
                               r.n_usable, r.n_shadowed, r.n_refused)});
  for (const auto& level : r.plugin_search.levels)
    for (const std::string& directory : level.directories)
      table.add({"  looked in", directory + " (" + level.label + ")"});
  return table.text();
}

}  // namespace

Json to_json(const MachineReport& r) {
  return {{"version", r.version},     {"cpu", cpu_json(r.cpu)},    {"numa", numa_json(r)},
          {"memory", memory_json(r)}, {"cuda", cuda_json(r.cuda)}, {"plugins", plugins_json(r)}};
}

std::string to_text(const MachineReport& r) {
  return machine_text(r) + devices_and_plugins_text(r);
}

}  // namespace kvasir::tool
