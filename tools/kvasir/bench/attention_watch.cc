// See attention_watch.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/attention_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace kvasir::tool {
namespace {

// out[j] = softmax over j of scale q.k_j, of the first n_keys keys; k [n_keys, stride].
void attend(std::span<const float> q, const float* k, uint32_t n_keys, size_t stride, float scale,
            float* out) {
  float largest = -INFINITY;
  for (uint32_t j = 0; j < n_keys; ++j) {
    out[j] = scale * std::inner_product(q.begin(), q.end(), k + j * stride, 0.0f);
    largest = std::max(largest, out[j]);
  }
  float sum = 0;
  for (uint32_t j = 0; j < n_keys; ++j) sum += out[j] = std::exp(out[j] - largest);
  for (uint32_t j = 0; j < n_keys; ++j) out[j] /= sum;
}

}  // namespace

void QueryTap::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                           float* v) const {
  WrappedModel::project_qkv(layer, x, n, q, k, v);
  if (n == 1 && k) queries_[layer].assign(q, q + size_t{shape().n_q_heads} * shape().head_dim);
}

void AttentionWatch::saw(SequenceId seq) {
  const ModelShape& shape = tap_.shape();
  const uint32_t kv_len = engine_.kv_len(seq);
  Seen seen{kv_len - 1, {}};
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    std::vector<float> q = tap_.query(layer);
    tap_.rope(layer).apply(q.data(), 1, shape.n_q_heads, shape.head_dim, {&seen.pos, 1}, kv_len);
    seen.queries.push_back(std::move(q));
  }
  seen_.push_back(std::move(seen));
}

std::vector<std::vector<float>> AttentionWatch::rows(SequenceId seq) {
  const ModelShape& shape = tap_.shape();
  const uint32_t kv_len = engine_.kv_len(seq);
  const size_t width = size_t{shape.n_kv_heads} * shape.head_dim;
  std::vector<uint32_t> positions(kv_len);
  std::iota(positions.begin(), positions.end(), 0u);
  std::vector<float> k(kv_len * width), v(kv_len * size_t{shape.n_kv_heads} * shape.v_head_dim);
  std::vector<std::vector<float>> out;
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer) {
    engine_.read_kv(seq, layer, positions, k.data(), v.data());
    std::vector<float>& rows = out.emplace_back(seen_.size() * shape.n_q_heads * kv_len);
    float* row = rows.data();
    for (const Seen& seen : seen_)
      for (uint32_t head = 0; head < shape.n_q_heads; ++head, row += kv_len) {
        const uint32_t kv_head = head / (shape.n_q_heads / shape.n_kv_heads);
        attend(
            std::span(seen.queries[layer]).subspan(head * size_t{shape.head_dim}, shape.head_dim),
            k.data() + kv_head * size_t{shape.head_dim}, seen.pos + 1, width,
            shape.attention_scale(), row);
      }
  }
  seen_.clear();
  return out;
}

double attention_deviation(const std::vector<std::vector<float>>& a,
                           const std::vector<std::vector<float>>& b, uint32_t n_q_heads,
                           uint32_t n_tokens) {
  double sum = 0;
  for (size_t layer = 1; layer < a.size(); ++layer) {
    const size_t n_keys = a[layer].size() / n_q_heads / n_tokens;
    for (uint32_t head = 0; head < n_q_heads; ++head) {
      double squares = 0;
      for (uint32_t token = 0; token < n_tokens; ++token) {
        const size_t at = (size_t{token} * n_q_heads + head) * n_keys;
        for (size_t j = at; j < at + n_keys; ++j) {
          const double difference = double{a[layer][j]} - double{b[layer][j]};
          squares += difference * difference;
        }
      }
      sum += std::sqrt(squares);
    }
  }
  return a.size() < 2 ? 0.0 : sum / (static_cast<double>(a.size() - 1) * n_q_heads);
}

}  // namespace kvasir::tool
