// See select_figures.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/select_figures.h"

#include <algorithm>
#include <vector>

#include "core/task/statistics.h"

namespace kvasir::tool {
namespace {

// Between the two nearest values; `sorted` is not empty.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double rest = at - static_cast<double>(below);
  return sorted[below] + rest * (sorted[above] - sorted[below]);
}

}  // namespace

Typical typical(std::span<const double> steps, uint32_t period) {
  if (steps.empty()) return {};
  const size_t n = std::min<size_t>(std::max(period, 1u), steps.size());
  std::vector<double> groups;
  for (size_t at = 0; at + n <= steps.size(); at += n) groups.push_back(mean(steps.subspan(at, n)));
  std::sort(groups.begin(), groups.end());
  Typical out;
  out.middle = quantile(groups, 0.5);
  if (out.middle > 0) out.spread = (quantile(groups, 0.75) - quantile(groups, 0.25)) / out.middle;
  return out;
}

StepFloors step_floors(const StepWork& work, double read_bandwidth, double multiply_add_rate) {
  StepFloors out;
  out.choose_bytes = 1e3 * work.bytes_to_choose / read_bandwidth;
  out.attend_bytes = 1e3 * work.kv_bytes / read_bandwidth;
  if (work.element_bytes > 0)
    out.choose_arithmetic =
        1e3 * work.bytes_to_choose / work.element_bytes * work.group_size / multiply_add_rate;
  return out;
}

std::optional<uint32_t> propose_dense_below(std::span<const DepthRatio> depths) {
  std::optional<uint32_t> from;
  for (size_t i = depths.size(); i-- > 0;) {
    if (depths[i].attends_everything || depths[i].of_dense >= 1.0) break;
    from = depths[i].depth;
  }
  return from;
}

}  // namespace kvasir::tool
