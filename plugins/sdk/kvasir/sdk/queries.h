// The query view of a step call, checked once.
// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <kvasir/sdk/error.h>
#include <kvasir/sdk/step.h>
#include <kvasir/step.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::sdk {

// f32 [queries][n_q_heads][head_dim], each query contiguous.
class Queries {
 public:
  Queries(const kvasir_view& q, uint32_t n_q_heads, uint32_t head_dim)
      : q_(q), n_q_heads_(n_q_heads), head_dim_(head_dim) {
    if (q.mem_kind > KVASIR_MEM_PINNED || q.dtype != KVASIR_DTYPE_F32 || q.rank != 3 ||
        q.shape[1] != n_q_heads || q.shape[2] != head_dim ||
        q.stride[1] != static_cast<int64_t>(head_dim * sizeof(float))) {
      fail_invalid("q must be f32 [queries][" + std::to_string(n_q_heads) + "][" +
                   std::to_string(head_dim) + "], each query contiguous, in host memory");
    }
  }

  const float* head(uint32_t query, uint32_t q_head) const {
    if (query >= q_.shape[0]) fail_invalid("q has no query " + std::to_string(query));
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(q_.data) +
                                          int64_t{query} * q_.stride[0]) +
           uint64_t{q_head} * head_dim_;
  }

  // One query per sequence of the step: the mean of its queries.   [n_seqs][n_q_heads][head_dim]
  std::vector<float> pooled(const Step& step) const {
    const uint64_t width = uint64_t{n_q_heads_} * head_dim_;
    std::vector<float> out(step.n_seqs() * width);
    for (uint32_t s = 0; s < step.n_seqs(); ++s) {
      const kvasir_step_seq& seq = step.seq(s);
      for (uint32_t i = 0; i < seq.n_q; ++i) {
        const float* q = head(seq.q_begin + i, 0);
        for (uint64_t d = 0; d < width; ++d) {
          out[s * width + d] += q[d] / static_cast<float>(seq.n_q);
        }
      }
    }
    return out;
  }

 private:
  const kvasir_view& q_;
  uint32_t n_q_heads_;
  uint32_t head_dim_;
};

}  // namespace kvasir::sdk
