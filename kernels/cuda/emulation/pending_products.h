// What a thread has started of products of panels, until it waits for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <vector>

namespace kvasir::cuda::emulation {

struct PendingProducts {
  struct Sums {
    float (*d)[4];  // [8][4] of the thread; NaN for now
    std::array<std::array<float, 4>, 8> values;
  };
  // 16 bytes of a panel, which stay as they are until the products are done.
  struct Piece {
    const std::byte* at;
    std::array<std::byte, 16> bytes;
  };

  struct Group {
    std::vector<Sums> sums;
    std::vector<Piece> pieces;
  };

  bool are_open = false;  // begun, not committed
  Group open;
  std::list<Group> groups;  // committed, not waited for
};

}  // namespace kvasir::cuda::emulation
