// Attention that a selector hands over itself, for keys that no list names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace kvasir {

// Of all queries of a step, f32; lse = -inf: nothing for that query and head.
struct Contribution {
  std::vector<float> o;    // [queries][n_q_heads][v_dim]
  std::vector<float> lse;  // [queries][n_q_heads]
};

}  // namespace kvasir
