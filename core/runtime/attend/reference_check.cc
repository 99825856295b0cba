// See reference_check.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/attend/reference_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/plugin/check/plugin_checks.h"
#include "core/runtime/blocks/memory_bridge.h"

namespace kvasir {
namespace {

// Backends may multiply in bf16 and sum in any order; beyond that they attend to something else.
constexpr float kMostOfLargest = 0.05f;  // of o, of the largest element of the head
constexpr float kMostOfLse = 0.1f;

// Makes the parts name the last query of each piece alone, for a whole prompt takes the reference
// minutes. They point to what is returned.
std::vector<kvasir_attn_range> keep_last_queries(const std::vector<Piece>& pieces,
                                                 std::vector<kvasir_attn_part>& parts) {
  std::vector<kvasir_attn_range> ranges;
  for (const kvasir_attn_part& part : parts)
    ranges.insert(ranges.end(), part.ranges, part.ranges + part.n_ranges);
  for (kvasir_attn_range& range : ranges) {
    const uint64_t begin = range.q_begin, end = begin + range.n_q;
    range.n_q = 0;
    for (const Piece& piece : pieces) {
      const uint32_t last = piece.q_begin + piece.n_q - 1;
      if (last < begin || last >= end) continue;
      range.q_begin = last;
      range.n_q = 1;
    }
  }
  uint64_t at = 0;
  for (kvasir_attn_part& part : parts) {
    part.ranges = ranges.data() + at;
    at += part.n_ranges;
  }
  return ranges;
}

}  // namespace

void ReferenceCheck::compare(const kvasir_step& step, const kvasir_attn_in& in, const Pass& pass,
                             const float* o, const float* lse) {
  Attention* const reference = c_.pipeline.reference.get();
  if (!reference || n_runs_++ % backend_.checks()->reference_every != 0) return;
  if (in.n_parts == 0 || !is_host_memory(in.parts[0].q.mem_kind)) return;
  std::vector<kvasir_attn_part> parts(in.parts, in.parts + in.n_parts);
  const std::vector<kvasir_attn_range> ranges = keep_last_queries(pass.pieces, parts);
  kvasir_attn_in few = in;
  few.parts = parts.data();
  const uint64_t heads = c_.geometry.n_q_heads, v_dim = c_.geometry.v_dim;
  std::vector<float> right_o(pass.in.n * heads * v_dim);
  std::vector<float> right_lse(pass.in.n * heads, std::numeric_limits<float>::quiet_NaN());
  kvasir_attn_out out{sizeof(kvasir_attn_out), 0,
                      host_view(right_o.data(), KVASIR_DTYPE_F32, {pass.in.n, heads, v_dim}),
                      host_view(right_lse.data(), KVASIR_DTYPE_F32, {pass.in.n, heads}), 0};
  reference->run(step, few, out);
  ++backend_.checks()->n_compared;
  for (const Piece& piece : pass.pieces)
    for (uint64_t head = 0; head < heads; ++head) {
      const uint64_t query = uint64_t{piece.q_begin} + piece.n_q - 1, i = query * heads + head;
      if (std::isfinite(right_lse[i]))  // else these parts have no key for it
        check(pass, query, head, o + i * v_dim, right_o.data() + i * v_dim,
              std::abs(right_lse[i] - lse[i]));
    }
}

void ReferenceCheck::check(const Pass& pass, uint64_t query, uint64_t head, const float* o,
                           const float* right_o, float lse_apart) const {
  float largest = 0, apart = 0;
  for (uint32_t d = 0; d < c_.geometry.v_dim; ++d) {
    largest = std::max(largest, std::abs(right_o[d]));
    apart = std::max(apart, std::abs(right_o[d] - o[d]));
  }
  if (apart <= kMostOfLargest * largest && lse_apart <= kMostOfLse) return;
  throw PluginError(backend_.id(), "run", KVASIR_ERR_INTERNAL,
                    "layer " + std::to_string(pass.layer) + ", query " + std::to_string(query) +
                        ", head " + std::to_string(head) + ": its output is " +
                        std::to_string(apart) + " from that of " + c_.pipeline.reference->id() +
                        " (largest element " + std::to_string(largest) + "), its lse " +
                        std::to_string(lse_apart) + " (a defect of the plugin)");
}

}  // namespace kvasir
