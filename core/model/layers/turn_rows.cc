// See turn_rows.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/turn_rows.h"

namespace kvasir {

void turn_rows(const Model& model, uint32_t layer, std::span<const Model::Turn> turns, float* q,
               float* k) {
  const ModelShape& s = model.shape();
  const auto apply = [&](const Model::Turn& turn, float* rows, uint32_t n_heads) {
    model.rope(layer).apply(rows + uint64_t{turn.first} * n_heads * s.head_dim,
                            static_cast<uint32_t>(turn.pos.size()), n_heads, s.head_dim, turn.pos,
                            turn.kv_len);
  };
  for (const Model::Turn& turn : turns) {
    apply(turn, q, s.n_q_heads);
    if (turn.turns_k) apply(turn, k, s.n_kv_heads);
  }
}

}  // namespace kvasir
