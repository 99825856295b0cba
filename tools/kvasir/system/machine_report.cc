// See machine_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/system/machine_report.h"

#include "core/model/layers/model.h"
#include "core/platform/cgroup.h"
#include "kernels/simd_target.h"
#include "tools/kvasir/session/plugin_host.h"
#include "tools/kvasir/session/strategy.h"

namespace kvasir::tool {
namespace {

CpuReport cpu_report(PluginHost& host) {
  CpuReport out;
  out.features = cpu_features();
  out.simd_target = kernels::simd_target_name();
  out.compute.emplace_back(name(Compute::kInt8));
  if (compute_supported(Compute::kBF16)) out.compute.emplace_back(name(Compute::kBF16));
  out.compute.emplace_back(name(Compute::kF32));
  out.topology = host.topology().summary();
  out.n_workers = host.pool().n_workers();
  out.quota = cgroup_limits().cpu_quota;
  return out;
}

}  // namespace

MachineReport machine_report(const Options& options, bool quick) {
  PluginHost host(options);
  MachineReport out;
  out.version = KVASIR_VERSION;
  out.cpu = cpu_report(host);
  out.numa = numa_status();
  const auto& nodes = host.topology().nodes();
  out.nodes.assign(nodes.begin(), nodes.end());
  out.memory = memory_info();
  out.huge_pages = huge_page_status();
  if (!quick) out.read_bandwidth = measure_read_bandwidth(host.pool());
  out.cuda = cuda_report();
  out.plugin_search = plugin_search(options);
  for (const PluginFile& file : host.registry().files()) {
    if (file.verdict == PluginFile::Verdict::kUsable) ++out.n_usable;
    if (file.verdict == PluginFile::Verdict::kShadowed) ++out.n_shadowed;
    if (file.verdict == PluginFile::Verdict::kRefused) ++out.n_refused;
  }
  return out;
}

}  // namespace kvasir::tool
