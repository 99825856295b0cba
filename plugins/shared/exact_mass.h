// The attention mass a query would give every cached token, from the keys themselves: what methods
// estimate. For selectors with KVASIR_NEED_KEYS that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/selector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "plugins/shared/key_values.h"
#include "plugins/shared/softcap.h"

namespace kvasir::sdk {

class ExactMass {
 public:
  static void validate(const kvasir_geometry& geometry) { require_rotated_keys(geometry); }

  ExactMass() = default;
  explicit ExactMass(const kvasir_geometry& geometry) : g_(geometry), keys_(geometry) {}

  // Adds the mass of one query over the kv_len tokens of sequence `seq` to sum; tokens that are
  // gone get none. Accumulated in double.   q [head_dim], sum [kv_len]
  void add(const kvasir_sel_in& in, uint32_t seq, uint32_t kv_len, uint32_t kv_head, const float* q,
           std::vector<double>& sum) const {
    const kvasir_lease* leases = in.leases + in.lease_offsets[seq];
    std::vector<double> logit(kv_len, -std::numeric_limits<double>::infinity());
    std::vector<float> key(g_.head_dim);
    double high = -std::numeric_limits<double>::infinity();
    for (uint32_t token = 0; token < kv_len; ++token) {
      const kvasir_lease& lease = leases[token / g_.block_size];
      if (!lease.k) continue;
      const uint32_t block = token / g_.block_size, at = token % g_.block_size;
      read_keys(keys_.keys(&lease, kv_head, block, at + 1), at, 1, g_.head_dim, key.data());
      double dot = 0.0;
      for (uint32_t d = 0; d < g_.head_dim; ++d) dot += double{q[d]} * double{key[d]};
      logit[token] = softcapped(g_, double{g_.softmax_scale} * dot);
      high = std::max(high, logit[token]);
    }
    double total = 0.0;
    for (double& x : logit)
      total += x = high == -std::numeric_limits<double>::infinity() ? 0.0 : std::exp(x - high);
    if (!std::isfinite(total)) fail_invalid("mass: a logit is not finite");
    for (uint32_t token = 0; token < kv_len && total > 0.0; ++token)
      sum[token] += logit[token] / total;
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
