// The attention mass a query would give every cached token, from the keys themselves: what methods
// estimate. For selectors with KVASIR_NEED_KEYS that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/selector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_f64.h"
#include "plugins/shared/key_values.h"
#include "plugins/shared/softcap.h"

namespace kvasir::sdk {

class ExactMass {
 public:
  static void validate(const kvasir_geometry& geometry) { require_rotated_keys(geometry); }

  ExactMass() = default;
  explicit ExactMass(const kvasir_geometry& geometry) : g_(geometry), keys_(geometry) {}

  // Adds the mass of n_q queries of one kv head over the kv_len tokens of sequence `seq` to sum;
  // tokens that are gone get none. Accumulated in double.   q [n_q][head_dim], sum [kv_len]
  void add(const kvasir_sel_in& in, uint32_t seq, uint32_t kv_len, uint32_t kv_head, const float* q,
           uint32_t n_q, std::vector<double>& sum) const {
    const kvasir_lease* leases = in.leases + in.lease_offsets[seq];
    std::vector<double> mass(uint64_t{n_q} * kv_len, -std::numeric_limits<double>::infinity());
    std::vector<float> keys(uint64_t{g_.block_size} * g_.head_dim);
    for (uint32_t block = 0; block * uint64_t{g_.block_size} < kv_len; ++block) {
      if (!leases[block].k) continue;
      const uint32_t first = block * g_.block_size, n = std::min(g_.block_size, kv_len - first);
      read_keys(keys_.keys(&leases[block], kv_head, block, n), 0, n, g_.head_dim, keys.data());
      kernels::dots_f64(q, n_q, keys.data(), n, g_.head_dim, g_.head_dim, mass.data() + first,
                        kv_len);
      for (uint32_t j = 0; j < n_q; ++j)
        for (uint32_t t = first; t < first + n; ++t) {
          double& logit = mass[uint64_t{j} * kv_len + t];
          logit = softcapped(g_, double{g_.softmax_scale} * logit);
        }
    }
    for (uint32_t j = 0; j < n_q; ++j) {
      double* of_query = mass.data() + uint64_t{j} * kv_len;
      const double total = kernels::softmax_weights_f64(of_query, kv_len);
      if (!std::isfinite(total)) fail_invalid("mass: a logit is not finite");
      for (uint32_t t = 0; t < kv_len && total > 0.0; ++t) sum[t] += of_query[t] / total;
    }
  }

  // What add() reads of the keys of one kv head, for whichever queries.
  uint64_t bytes(const kvasir_sel_in& in, uint32_t seq, uint32_t kv_len, uint32_t kv_head) const {
    const kvasir_lease* leases = in.leases + in.lease_offsets[seq];
    uint64_t sum = 0;
    for (uint32_t block = 0; block * uint64_t{g_.block_size} < kv_len; ++block) {
      if (!leases[block].k) continue;
      const uint32_t n = std::min(g_.block_size, kv_len - block * g_.block_size);
      sum += n * key_bytes(keys_.keys(&leases[block], kv_head, block, n), g_.head_dim);
    }
    return sum;
  }

 private:
  kvasir_geometry g_{};
  LeasedKeys keys_;
};

}  // namespace kvasir::sdk
