// kvasir doctor: what this machine has, and which of it will be used.
// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "core/platform/cgroup.h"
#include "core/platform/cpu_features.h"
#include "core/platform/memory.h"
#include "core/platform/system_report.h"
#include "kernels/simd_target.h"
#include "tools/kvasir/cli/text.h"
#include "tools/kvasir/commands.h"
#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/system/cuda_report.h"

namespace kvasir::tool {
namespace {

using Json = nlohmann::ordered_json;

Json cpu_json(PluginHost& host) {
  const CpuFeatures& cpu = cpu_features();
  std::vector<std::string> compute{"f32"};
  if (compute_supported(Compute::kBF16)) compute.insert(compute.begin(), "bf16");
  Json out{{"model", cpu.model},
           {"vendor", cpu.vendor},
           {"features", cpu.list()},
           {"simd_target", kernels::simd_target_name()},
           {"compute", compute},
           {"topology", host.topology().summary()},
           {"n_workers", host.pool().n_workers()}};
  const auto quota = cgroup_limits().cpu_quota;
  if (quota) out["cpu_quota"] = *quota;
  return out;
}

Json numa_json(PluginHost& host) {
  const NumaStatus numa = numa_status();
  Json nodes = Json::array();
  for (const NumaNode& node : host.topology().nodes())
    nodes.push_back(
        {{"node", node.os_index}, {"memory_bytes", node.memory_bytes}, {"n_cores", node.n_cores}});
  return {{"available", numa.available},
          {"can_place", numa.can_place},
          {"balancing", numa.balancing},
          {"nodes", nodes}};
}

Json memory_json(PluginHost& host, bool quick) {
  const MemoryInfo memory = memory_info();
  const HugePageStatus huge = huge_page_status();
  Json out{{"total_bytes", memory.total_bytes},
           {"available_bytes", memory.available_bytes},
           {"huge_pages",
            {{"transparent", huge.thp_mode.empty() ? "absent" : huge.thp_mode},
             {"defrag", huge.thp_defrag},
             {"explicit_2mib_free", huge.free_2mib},
             {"explicit_2mib_total", huge.total_2mib},
             {"explicit_1gib_total", huge.total_1gib}}}};
  if (!quick) out["read_bandwidth_bytes_per_second"] = measure_read_bandwidth(host.pool());
  return out;
}

Json cuda_json() {
  const CudaReport cuda = cuda_report();
  Json out{{"built", cuda.is_built},
           {"runtime", cuda.runtime},
           {"driver", cuda.driver},
           {"problem", cuda.problem},
           {"devices", Json::array()}};
  for (const CudaDevice& device : cuda.devices)
    out["devices"].push_back(
        {{"name", device.name},
         {"compute_capability", format("%u.%u", device.compute_major, device.compute_minor)},
         {"memory_bytes", device.memory_bytes},
         {"free_bytes", device.free_bytes}});
  return out;
}

Json plugins_json(PluginHost& host, const Options& options) {
  Json out{{"searched", Json::array()}};
  for (const auto& level : plugin_search(options).levels)
    for (const std::string& directory : level.directories)
      out["searched"].push_back({{"level", level.label}, {"directory", directory}});
  uint32_t usable = 0, shadowed = 0, refused = 0;
  for (const PluginFile& file : host.registry().files()) {
    if (file.verdict == PluginFile::Verdict::kUsable) ++usable;
    if (file.verdict == PluginFile::Verdict::kShadowed) ++shadowed;
    if (file.verdict == PluginFile::Verdict::kRefused) ++refused;
  }
  out["usable"] = usable;
  out["shadowed"] = shadowed;
  out["refused"] = refused;
  return out;
}

void print_machine(const Json& r) {
  Table table({"kvasir", r["version"]});
  const Json &cpu = r["cpu"], &numa = r["numa"], &memory = r["memory"];
  const Json& huge = memory["huge_pages"];
  table.add({"cpu", cpu["model"]});
  table.add({"features", cpu["features"]});
  table.add({"kernels run on", cpu["simd_target"]});
  table.add({"dense layers in", join(cpu["compute"].get<std::vector<std::string>>(), " or ")});
  table.add({"topology", cpu["topology"]});
  table.add({"workers", cpu["n_workers"].dump()});
  if (cpu.contains("cpu_quota")) table.add({"cpu quota", cpu["cpu_quota"].dump() + " CPUs"});
  table.add({"numa", format("%zu node(s), placement %s%s", numa["nodes"].size(),
                            numa["can_place"].get<bool>() ? "possible" : "not permitted",
                            numa["balancing"].get<bool>() ? ", kernel balancing is on" : "")});
  table.add({"memory", bytes_text(memory["total_bytes"].get<uint64_t>()) + " total, " +
                           bytes_text(memory["available_bytes"].get<uint64_t>()) + " available"});
  if (memory.contains("read_bandwidth_bytes_per_second"))
    table.add(
        {"read bandwidth", format("%.1f GB/s with all workers, measured now",
                                  memory["read_bandwidth_bytes_per_second"].get<double>() / 1e9)});
  table.add({"huge pages", format("transparent: %s; explicit 2 MiB: %llu of %llu free",
                                  huge["transparent"].get<std::string>().c_str(),
                                  huge["explicit_2mib_free"].get<unsigned long long>(),
                                  huge["explicit_2mib_total"].get<unsigned long long>())});
  std::fputs(table.text().c_str(), stdout);
}

void print_devices_and_plugins(const Json& r) {
  const Json &cuda = r["cuda"], &plugins = r["plugins"];
  Table table({"cuda", cuda["problem"] == "" ? format("runtime %s, driver %s",
                                                      cuda["runtime"].get<std::string>().c_str(),
                                                      cuda["driver"].get<std::string>().c_str())
                                             : cuda["problem"].get<std::string>()});
  for (const Json& device : cuda["devices"])
    table.add({"  device",
               format("%s, compute %s, %s, %s free", device["name"].get<std::string>().c_str(),
                      device["compute_capability"].get<std::string>().c_str(),
                      bytes_text(device["memory_bytes"].get<uint64_t>()).c_str(),
                      bytes_text(device["free_bytes"].get<uint64_t>()).c_str())});
  table.add(
      {"plugins", format("%u usable, %u shadowed, %u refused (kvasir plugin list)",
                         plugins["usable"].get<uint32_t>(), plugins["shadowed"].get<uint32_t>(),
                         plugins["refused"].get<uint32_t>())});
  for (const Json& place : plugins["searched"])
    table.add({"  looked in", place["directory"].get<std::string>() + " (" +
                                  place["level"].get<std::string>() + ")"});
  std::fputs(table.text().c_str(), stdout);
}

void doctor(const Options& options, bool quick) {
  PluginHost host(options);
  const Json report{{"version", KVASIR_VERSION}, {"cpu", cpu_json(host)},
                    {"numa", numa_json(host)},   {"memory", memory_json(host, quick)},
                    {"cuda", cuda_json()},       {"plugins", plugins_json(host, options)}};
  if (options.json) return print_json(report);
  print_machine(report);
  print_devices_and_plugins(report);
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto* c = app.add_subcommand("doctor", "What this machine has, and which of it will be used");
  auto options = std::make_shared<Options>();
  auto quick = std::make_shared<bool>(false);
  c->add_option("-t,--threads", options->threads, "Worker threads")->envname("KVASIR_ARG_THREADS");
  c->add_option("--plugin-dir", options->plugin_dirs, "Folder to search for plugins first")
      ->allow_extra_args(false);
  c->add_flag("--quick", *quick, "Do not measure the memory bandwidth");
  c->add_flag("--json", options->json, "One JSON document on stdout, nothing else there");
  c->callback([=] { doctor(*options, *quick); });
}

}  // namespace kvasir::tool
