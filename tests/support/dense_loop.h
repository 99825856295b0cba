// The shortest step loop around a Model: plain causal attention in double over everything.
// Test-side: shows what the model's pieces compute when strung together, nothing else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/model/layers/model.h"

namespace kvasir::test {

class DenseLoop {
 public:
  // rope_len: what dynamic NTK sees as the length of the sequence in every step (0: the current
  // length).
  explicit DenseLoop(const Model& model, uint64_t rope_len = 0)
      : model_(model),
        rope_len_(rope_len),
        k_(model.shape().n_layers),
        v_(model.shape().n_layers) {}

  // Appends ids to the sequence; returns the logits of each, [ids.size(), vocab_size].
  std::vector<float> step(std::span<const int32_t> ids) {
    const ModelShape& s = model_.shape();
    const auto n = static_cast<uint32_t>(ids.size());
    const auto wide = [&](uint64_t width) { return std::vector<float>(n * width); };
    auto h = wide(s.d_model), x = wide(s.d_model);
    auto q = wide(uint64_t{s.n_q_heads} * s.head_dim),
         k = wide(uint64_t{s.n_kv_heads} * s.head_dim);
    auto v = wide(uint64_t{s.n_kv_heads} * s.v_head_dim);
    auto o = wide(uint64_t{s.n_q_heads} * s.v_head_dim);
    std::vector<uint32_t> pos(n);
    for (uint32_t i = 0; i < n; ++i) pos[i] = kv_len_ + i;
    const uint64_t rope_len = rope_len_ ? rope_len_ : kv_len_ + n;
    model_.embed(ids, h.data());
    for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
      model_.attn_norm(layer, h.data(), n, x.data());
      model_.project_qkv(layer, x.data(), n, q.data(), k.data(), v.data());
      model_.rope(layer).apply(q.data(), n, s.n_q_heads, s.head_dim, pos, rope_len);
      model_.rope(layer).apply(k.data(), n, s.n_kv_heads, s.head_dim, pos, rope_len);
      k_[layer].insert(k_[layer].end(), k.begin(), k.end());
      v_[layer].insert(v_[layer].end(), v.begin(), v.end());
      attend(layer, q, pos, o);
      model_.attn_output(layer, o.data(), n, h.data());
      model_.ffn(layer, h.data(), n);
    }
    kv_len_ += n;
    model_.read_hidden(h.data(), 0, n);
    std::vector<float> out(n * uint64_t{s.vocab_size});
    model_.logits(h.data(), n, out.data());
    return out;
  }

 private:
  void attend(uint32_t layer, const std::vector<float>& q, const std::vector<uint32_t>& pos,
              std::vector<float>& o) const {
    const ModelShape& s = model_.shape();
    for (size_t i = 0; i < pos.size(); ++i) {
      for (uint32_t q_head = 0; q_head < s.n_q_heads; ++q_head) {
        const uint32_t kv_head = q_head / s.group_size();
        std::vector<double> weights(pos[i] + 1), sum(s.v_head_dim);
        double max = -1e300, total = 0.0;
        const uint32_t window = s.sliding_window(layer);
        const uint32_t first = window != 0 && pos[i] >= window ? pos[i] + 1 - window : 0;
        for (uint32_t t = first; t <= pos[i]; ++t) {
          for (uint32_t d = 0; d < s.head_dim; ++d) {
            weights[t] += double{q[(i * s.n_q_heads + q_head) * s.head_dim + d]} *
                          double{k_[layer][(t * s.n_kv_heads + kv_head) * s.head_dim + d]};
          }
          weights[t] /= std::sqrt(static_cast<double>(s.head_dim));
          if (const double cap = s.softmax_softcap; cap != 0.0)
            weights[t] = cap * std::tanh(weights[t] / cap);
          max = std::max(max, weights[t]);
        }
        for (uint32_t t = first; t <= pos[i]; ++t) {
          const double w = std::exp(weights[t] - max);
          total += w;
          for (uint32_t d = 0; d < s.v_head_dim; ++d) {
            sum[d] += w * double{v_[layer][(t * s.n_kv_heads + kv_head) * s.v_head_dim + d]};
          }
        }
        for (uint32_t d = 0; d < s.v_head_dim; ++d) {
          o[(i * s.n_q_heads + q_head) * s.v_head_dim + d] = static_cast<float>(sum[d] / total);
        }
      }
    }
  }

  const Model& model_;
  uint64_t rope_len_;
  uint32_t kv_len_ = 0;
  std::vector<std::vector<float>> k_, v_;  // per layer [kv_len, n_kv_heads, dim]
};

}  // namespace kvasir::test
