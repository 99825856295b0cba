// Plugin extension test.told-heat/1: what kvasir.test.heat_storage was told of its blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::test {

inline constexpr const char* kToldHeatExtension = "test.told-heat/1";

struct ToldHeat {
  struct Block {
    uint32_t layer, block;
    float value;
  };
  std::vector<std::vector<Block>> calls;
};

}  // namespace kvasir::test
