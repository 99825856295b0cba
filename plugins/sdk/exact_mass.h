// The attention mass a query would give every cached token, from the keys themselves: what methods
// estimate. For selectors with KVASIR_NEED_KEYS that link kvasir::kernels.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/selector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/convert.h"
#include "plugins/sdk/error.h"
#include "plugins/sdk/softcap.h"
#include "plugins/sdk/step.h"

namespace kvasir::sdk {

class ExactMass {
 public:
  static void validate(const kvasir_geometry& geometry) {
    for (const auto& format : formats_of(geometry))
      if (format.dtype_k > KVASIR_DTYPE_BF16)
        fail_invalid("it reads keys as f32, f16 or bf16 only");
    if (geometry.k_state == KVASIR_K_UNROTATED)
      fail_invalid("it needs keys with their rotation: cache.positions = \"true\"");
  }

  ExactMass() = default;
  explicit ExactMass(const kvasir_geometry& geometry) : g_(geometry) {
    for (const auto& format : formats_of(geometry)) formats_.push_back(format);
  }

  // Adds the mass of one query over the kv_len tokens of `row` to sum; tokens that are gone get
  // none. Accumulated in double.   q [head_dim], sum [kv_len]
  void add(const kvasir_sel_in& in, uint32_t row, uint32_t kv_len, uint32_t kv_head, const float* q,
           std::vector<double>& sum) const {
    const kvasir_lease* leases = in.leases + in.lease_offsets[row];
    std::vector<double> logit(kv_len, -std::numeric_limits<double>::infinity());
    std::vector<float> key(g_.head_dim);
    double high = -std::numeric_limits<double>::infinity();
    for (uint32_t token = 0; token < kv_len; ++token) {
      const kvasir_lease& lease = leases[token / g_.block_size];
      if (!lease.k) continue;
      const kvasir_kv_format& f = formats_.at(lease.format);
      kernels::convert_to_f32(
          element_type(f.dtype_k),
          head_keys(lease, f, kv_head) + uint64_t{token % g_.block_size} * f.k_token_stride,
          key.data(), key.size());
      double dot = 0.0;
      for (uint32_t d = 0; d < g_.head_dim; ++d) dot += double{q[d]} * double{key[d]};
      logit[token] = softcapped(g_, double{g_.softmax_scale} * dot);
      high = std::max(high, logit[token]);
    }
    double total = 0.0;
    for (double& x : logit) total += x = std::isinf(high) ? 0.0 : std::exp(x - high);
    for (uint32_t token = 0; token < kv_len && total > 0.0; ++token)
      sum[token] += logit[token] / total;
  }

 private:
  static kernels::ElementType element_type(uint32_t dtype) {
    return dtype == KVASIR_DTYPE_F32   ? kernels::ElementType::kF32
           : dtype == KVASIR_DTYPE_F16 ? kernels::ElementType::kF16
                                       : kernels::ElementType::kBF16;
  }
  static Strided<const kvasir_kv_format> formats_of(const kvasir_geometry& geometry) {
    return {geometry.formats, geometry.n_formats, geometry.format_size};
  }

  kvasir_geometry g_{};
  std::vector<kvasir_kv_format> formats_;
};

}  // namespace kvasir::sdk
