// Binding of address ranges to memory nodes. For plugins that link libnuma.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/host.h>
#include <numa.h>
#include <numaif.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvasir::sdk {

using Nodes = std::vector<int32_t>;  // the operating system's numbers; empty: first touch decides

enum class Touched { kNo, kYes };  // whether pages are there already; then they move

// Pages of the range come from `nodes`: from the one, or from each in turn. A full node gives way
// to another: slower beats killed. Empty, or the node and why the system refuses. data: a multiple
// of the page size.
inline std::string prefer_nodes(std::byte* data, uint64_t bytes, const Nodes& nodes,
                                Touched touched = Touched::kNo) {
  if (nodes.empty()) return "";
  const auto refusal = [&](int error) {
    std::string out = "memory node";
    for (const int32_t node : nodes) out.append(" ").append(std::to_string(node));
    return out.append(": ").append(std::strerror(error));
  };
  static const bool is_available = numa_available() >= 0;
  if (!is_available) return refusal(ENOSYS);
  bitmask* mask = numa_allocate_nodemask();
  if (mask == nullptr) return refusal(ENOMEM);
  bool known = true;
  for (const int32_t node : nodes) {
    known &= node <= numa_max_node();
    if (known) numa_bitmask_setbit(mask, static_cast<unsigned>(node));
  }
  const int mode = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  const unsigned flags = touched == Touched::kYes ? MPOL_MF_MOVE : 0;
  int error = known ? 0 : EINVAL;
  // The kernel reads one bit less than it is told.
  if (known && mbind(data, bytes, mode, mask->maskp, mask->size + 1, flags) != 0) error = errno;
  numa_bitmask_free(mask);
  return error == 0 ? "" : refusal(error);
}

// What prefer_nodes() said first, to the log.
inline void tell_refusal(const Host& host, const std::string& refusal) {
  host.log(KVASIR_LOG_WARN, "blocks are not all on the memory node that reads them (" + refusal +
                                "): allow mbind to this process, in a container CAP_SYS_NICE");
}

}  // namespace kvasir::sdk
