// The transformer in double, in plain loops straight from the formulas: the oracle of the model
// tests. Shares nothing with the product but the file reader: own RoPE, own norm, own attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/model/gguf/quant.h"

namespace kvasir::test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // a matrix: one row per token, or per output of a weight

class ReferenceModel {
 public:
  explicit ReferenceModel(const GgufFile& file) : file_(file) {
    arch_ = file.require<std::string_view>("general.architecture");
    n_layers_ = number("block_count");
    n_q_heads_ = number("attention.head_count");
    n_kv_heads_ = number("attention.head_count_kv");
    head_dim_ = number("attention.key_length");
    eps_ = file.require<float>(arch_ + ".attention.layer_norm_rms_epsilon");
    base_ = file.require<float>(arch_ + ".rope.freq_base");
  }

  // Logits of every token.
  Rows forward(const std::vector<int32_t>& ids) const {
    const Rows embedding = matrix("token_embd.weight");
    Rows h;
    for (const int32_t id : ids) h.push_back(embedding[static_cast<size_t>(id)]);
    if (is_gemma())
      for (Row& row : h)
        for (double& x : row) x *= std::sqrt(static_cast<double>(row.size()));
    for (size_t layer = 0; layer < n_layers_; ++layer) {
      const std::string blk = "blk." + std::to_string(layer) + ".";
      const Rows seen = attention(layer, normed(h, blk + "attn_norm.weight"));
      add(h, normed_if(times(seen, blk + "attn_output"), blk + "post_attention_norm.weight"));
      const Rows x = normed(h, blk + "ffn_norm.weight");
      Rows gate = times(x, blk + "ffn_gate");
      const Rows up = times(x, blk + "ffn_up");
      for (size_t t = 0; t < gate.size(); ++t) {
        for (size_t i = 0; i < gate[t].size(); ++i) {
          gate[t][i] = activated(gate[t][i]) * up[t][i];
        }
      }
      add(h, normed_if(times(gate, blk + "ffn_down"), blk + "post_ffw_norm.weight"));
    }
    const bool tied = file_.find_tensor("output.weight") == nullptr;
    Rows logits = times(normed(h, "output_norm.weight"), tied ? "token_embd" : "output");
    for (Row& row : logits)
      for (double& x : row) x = capped(x, "final_logit_softcapping");
    return logits;
  }

 private:
  bool is_gemma() const { return arch_.starts_with("gemma"); }

  double activated(double x) const {
    if (!is_gemma()) return x / (1.0 + std::exp(-x));
    return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  }

  double capped(double x, const char* key) const {
    const double cap = file_.get_or<float>(arch_ + "." + key, 0.0f);
    return cap == 0.0 ? x : cap * std::tanh(x / cap);
  }

  // Gemma 3: every sixth layer sees all; Gemma 2: every second; others: none does.
  size_t window(size_t layer) const {
    const size_t tokens = file_.get_or<uint32_t>(arch_ + ".attention.sliding_window", 0);
    const bool is_global = (arch_ == "gemma3" && layer % 6 == 5) ||
                           (arch_ == "gemma2" && layer % 2 == 1) || tokens == 0;
    return is_global ? SIZE_MAX : tokens;
  }

  Rows normed_if(const Rows& x, const std::string& name) const {
    return file_.find_tensor(name) ? normed(x, name) : x;
  }

  size_t number(const char* key) const { return file_.require<uint32_t>(arch_ + "." + key); }

  Rows matrix(const std::string& name) const {
    const GgufTensor& tensor = file_.tensor(name);
    std::vector<float> flat(tensor.n_elements);
    dequantize(tensor.type, tensor.data, flat.data(), flat.size());
    const size_t width = tensor.shape[0];
    Rows rows;
    for (size_t i = 0; i < flat.size(); i += width) {
      rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(i),
                        flat.begin() + static_cast<std::ptrdiff_t>(i + width));
    }
    return rows;
  }

  // x W^T (+ bias where the file has one)
  Rows times(const Rows& x, const std::string& name) const {
    const Rows w = matrix(name + ".weight");
    Rows y(x.size(), Row(w.size()));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t j = 0; j < w.size(); ++j) {
        for (size_t i = 0; i < w[j].size(); ++i) y[t][j] += x[t][i] * w[j][i];
      }
      if (file_.find_tensor(name + ".bias")) {
        const Row bias = matrix(name + ".bias")[0];
        for (size_t j = 0; j < w.size(); ++j) y[t][j] += bias[j];
      }
    }
    return y;
  }

  Row norm(const Row& x, const Row& weight) const {
    double squares = 0.0;
    for (const double value : x) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(x.size()) + eps_);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / rms * weight[i];
    return y;
  }

  Rows normed(const Rows& x, const std::string& name) const {
    const Row weight = matrix(name)[0];
    Rows y;
    for (const Row& row : x) y.push_back(norm(row, weight));
    return y;
  }

  // One head of a token, normalised where the file has the norm and turned to its position.
  Row head(const Row& heads, size_t index, size_t layer, const char* norm_of, size_t pos) const {
    const std::string norm_name = "blk." + std::to_string(layer) + "." + norm_of + "_norm.weight";
    const double base = arch_ == "gemma3" && window(layer) != SIZE_MAX ? 10000.0 : base_;
    const auto begin = heads.begin() + static_cast<std::ptrdiff_t>(index * head_dim_);
    Row x(begin, begin + static_cast<std::ptrdiff_t>(head_dim_));
    if (file_.find_tensor(norm_name)) x = norm(x, matrix(norm_name)[0]);
    Row y = x;
    for (size_t i = 0; i < head_dim_ / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
      const double angle = static_cast<double>(pos) * std::pow(base, exponent);
      const size_t a = arch_ == "llama" ? 2 * i : i;
      const size_t b = arch_ == "llama" ? 2 * i + 1 : i + head_dim_ / 2;
      y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      y[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
    return y;
  }

  Rows attention(size_t layer, const Rows& x) const {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    const Rows q = times(x, blk + "attn_q"), k = times(x, blk + "attn_k");
    const Rows v = times(x, blk + "attn_v");
    Rows out(x.size(), Row(n_q_heads_ * head_dim_));
    for (size_t q_head = 0; q_head < n_q_heads_; ++q_head) {
      const size_t kv_head = q_head / (n_q_heads_ / n_kv_heads_);
      Rows keys;
      for (size_t t = 0; t < x.size(); ++t) {
        keys.push_back(head(k[t], kv_head, layer, "attn_k", t));
        const Row query = head(q[t], q_head, layer, "attn_q", t);
        Row weights(t + 1);
        double total = 0.0;
        for (size_t s = 0; s <= t; ++s) {
          if (t - s >= window(layer)) continue;
          double dot = 0.0;
          for (size_t d = 0; d < head_dim_; ++d) dot += query[d] * keys[s][d];
          weights[s] = std::exp(
              capped(dot / std::sqrt(static_cast<double>(head_dim_)), "attn_logit_softcapping"));
          total += weights[s];
        }
        for (size_t s = 0; s <= t; ++s) {
          for (size_t d = 0; d < head_dim_; ++d) {
            out[t][q_head * head_dim_ + d] += weights[s] / total * v[s][kv_head * head_dim_ + d];
          }
        }
      }
    }
    return out;
  }

  static void add(Rows& h, const Rows& x) {
    for (size_t t = 0; t < h.size(); ++t) {
      for (size_t i = 0; i < h[t].size(); ++i) h[t][i] += x[t][i];
    }
  }

  const GgufFile& file_;
  std::string arch_;
  size_t n_layers_, n_q_heads_, n_kv_heads_, head_dim_;
  double eps_, base_;
};

}  // namespace kvasir::test
