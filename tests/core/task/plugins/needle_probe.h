// Extension of the needle probe: what it shall do is written, what it has seen is read, between
// steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::test {

inline constexpr const char* kNeedleProbe = "org.test.needle_probe/1";

struct NeedleProbe {
  enum class Mode { kAll, kMask, kTopK } mode = Mode::kAll;
  // kMask: tokens [begin, end) are not attended. kTopK: as many tokens as this share of the cached
  // ones, those of most exact probability summed over the group, forced parts counted in.
  std::vector<std::pair<uint32_t, uint32_t>> masked;
  double share = 1;
  // Attention mass of the last decode step on tokens [begin, end), [layer][q_head].
  uint32_t watch_begin = 0, watch_end = 0;
  std::vector<std::vector<double>> mass;
};

}  // namespace kvasir::test
