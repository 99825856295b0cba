// Attention to keys that a selector does not list, computed in double from the leases of f32 blocks
// (KVASIR_NEED_CONTRIBUTION).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvasir/sdk/view.h>

#include <cmath>
#include <vector>

namespace kvasir::test {

inline const float* vector_at(const void* first, uint64_t offset) {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(first) + offset);
}

// Of one query and the heads of one group, to `units`, ascending; written to out.o and out.lse.
inline void stand_in(const kvasir_geometry& g, uint32_t unit, const kvasir_sel_in& in,
                     const kvasir_lease* leases, uint32_t kv_head, uint32_t query,
                     const std::vector<uint32_t>& units, kvasir_selection& out) {
  const uint32_t group = g.n_q_heads / g.n_kv_heads;
  const uint32_t per = unit == KVASIR_UNIT_BLOCK ? g.block_size : 1;
  for (uint32_t h = kv_head * group; !units.empty() && h < (kv_head + 1) * group; ++h) {
    const uint64_t at = uint64_t{query} * g.n_q_heads + h;
    const float* q = sdk::floats(in.q, "q") + at * g.head_dim;
    std::vector<double> sum(g.v_dim);
    double total = 0;
    for (uint64_t i = 0; i < units.size() * per; ++i) {
      const uint64_t token = uint64_t{units[i / per]} * per + i % per;
      const kvasir_lease& lease = leases[token / g.block_size];
      const kvasir_kv_format& f = g.formats[lease.format];
      const uint64_t t = token % g.block_size;
      const float* k = vector_at(lease.k, kv_head * f.k_head_stride + t * f.k_token_stride);
      const float* v = vector_at(lease.v, kv_head * f.v_head_stride + t * f.v_token_stride);
      double logit = 0;
      for (uint32_t d = 0; d < g.head_dim; ++d) logit += double{q[d]} * double{k[d]};
      const double weight = std::exp(logit * double{g.softmax_scale});
      total += weight;
      for (uint32_t d = 0; d < g.v_dim; ++d) sum[d] += weight * double{v[d]};
    }
    for (uint32_t d = 0; d < g.v_dim; ++d)
      sdk::floats(out.o, "o")[at * g.v_dim + d] = static_cast<float>(sum[d] / total);
    sdk::floats(out.lse, "lse")[at] = static_cast<float>(std::log(total));
  }
}

}  // namespace kvasir::test
