// Contributions; see contribution.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/select/contribution.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/runtime/select/index_lists.h"
#include "core/runtime/step/pass.h"

namespace kvasir {

std::string check_contribution(const ListBuffer& result, const std::vector<Piece>& pieces,
                               const kvasir_geometry& geometry) {
  if (!(result.view.flags & KVASIR_SELECTION_CONTRIBUTES)) return "";
  const uint64_t heads = geometry.n_q_heads, dim = geometry.v_dim;
  for (const Piece& piece : pieces)
    for (uint64_t i = piece.q_begin * heads; i < (uint64_t{piece.q_begin} + piece.n_q) * heads;
         ++i) {
      const std::string where =
          " of query " + std::to_string(i / heads) + ", head " + std::to_string(i % heads);
      if (std::isnan(result.lse[i]) || result.lse[i] == INFINITY)
        return "contribution" + where + ": lse is NaN or +inf";
      if (result.lse[i] == -INFINITY) continue;
      for (uint64_t d = i * dim; d < (i + 1) * dim; ++d)
        if (!std::isfinite(result.o[d])) return "contribution" + where + ": o is not finite";
    }
  return "";
}

bool take_contribution(const ListBuffer& result, const Piece& piece,
                       const kvasir_geometry& geometry, Contribution& into) {
  if (!(result.view.flags & KVASIR_SELECTION_CONTRIBUTES)) return false;
  if (into.lse.empty()) {
    into.o.assign(result.o.size(), 0.0f);
    into.lse.assign(result.lse.size(), -INFINITY);
  }
  const auto copy = [&](const std::vector<float>& from, std::vector<float>& to, uint64_t width) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(piece.q_begin * width), piece.n_q * width,
                to.begin() + static_cast<ptrdiff_t>(piece.q_begin * width));
  };
  copy(result.o, into.o, uint64_t{geometry.n_q_heads} * geometry.v_dim);
  copy(result.lse, into.lse, geometry.n_q_heads);
  return true;
}

}  // namespace kvasir
