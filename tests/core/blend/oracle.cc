// See oracle.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/core/blend/oracle.h"

#include <algorithm>
#include <cmath>

namespace kvasir::test {

BlendOracle::BlendOracle(const Model& model) : model_(model), shape_(model.shape()) {}

Row BlendOracle::turned(const float* x, uint32_t n_heads, uint32_t pos) const {
  const uint32_t dim = shape_.head_dim;
  Row y(size_t{n_heads} * dim);
  for (uint32_t head = 0; head < n_heads; ++head)
    for (uint32_t i = 0; i < dim; i += 2) {
      const double angle = pos * std::pow(double{shape_.rope.base}, -double(i) / double(dim));
      const double a = x[head * dim + i], b = x[head * dim + i + 1];
      y[head * dim + i] = a * std::cos(angle) - b * std::sin(angle);
      y[head * dim + i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  return y;
}

void BlendOracle::project(uint32_t layer, Token& token) const {
  std::vector<float> x(shape_.d_model), q(size_t{shape_.n_q_heads} * shape_.head_dim),
      k(size_t{shape_.n_kv_heads} * shape_.head_dim), v(k.size());
  model_.attn_norm(layer, token.h.data(), 1, x.data());
  model_.project_qkv(layer, x.data(), 1, q.data(), k.data(), v.data());
  token.q = turned(q.data(), shape_.n_q_heads, token.pos);
  token.k = turned(k.data(), shape_.n_kv_heads, token.pos);
  token.v.assign(v.begin(), v.end());
}

void BlendOracle::store(uint32_t layer, const Token& token) {
  for (auto* rows : {&keys_, &values_})
    if ((*rows)[layer].size() <= token.pos) (*rows)[layer].resize(token.pos + 1);
  keys_[layer][token.pos] = token.k;
  values_[layer][token.pos] = token.v;
}

// Attends to all positions up to its own.
void BlendOracle::finish_layer(uint32_t layer, Token& token) const {
  const uint32_t dim = shape_.head_dim, group = shape_.n_q_heads / shape_.n_kv_heads;
  std::vector<float> o(token.q.size());
  for (uint32_t head = 0; head < shape_.n_q_heads; ++head) {
    const size_t kv = size_t{head / group} * dim;
    std::vector<double> p;
    double high = -INFINITY, total = 0;
    for (uint32_t pos = 0; pos <= token.pos; ++pos) {
      double dot = 0;
      for (uint32_t d = 0; d < dim; ++d)
        dot += token.q[size_t{head} * dim + d] * keys_[layer][pos][kv + d];
      p.push_back(dot / std::sqrt(double(dim)));
      high = std::max(high, p.back());
    }
    for (double& x : p) total += x = std::exp(x - high);
    for (uint32_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (uint32_t pos = 0; pos <= token.pos; ++pos) sum += p[pos] * values_[layer][pos][kv + d];
      o[size_t{head} * dim + d] = static_cast<float>(sum / total);
    }
  }
  model_.attn_output(layer, o.data(), 1, token.h.data());
  model_.ffn(layer, token.h.data(), 1);
}

std::vector<BlendOracle::Token> BlendOracle::tokens_at(std::span<const TokenId> ids,
                                                       uint32_t first) const {
  std::vector<Token> tokens;
  for (const TokenId id : ids) {
    Token token{id, first++, std::vector<float>(shape_.d_model), {}, {}, {}};
    model_.embed({&id, 1}, token.h.data());
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void BlendOracle::read(std::vector<Token>& tokens) {
  for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (Token& token : tokens) {
      project(layer, token);
      store(layer, token);
    }
    for (Token& token : tokens) finish_layer(layer, token);
  }
}

// Those farthest from what is stored, K and V each measured in the mean size of the fresh ones.
std::vector<BlendOracle::Token> BlendOracle::chosen_of(uint32_t layer,
                                                       const std::vector<Token>& tokens,
                                                       uint32_t count) {
  const auto distance = [](const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(sum);
  };
  double k_size = 0, v_size = 0;
  for (const Token& token : tokens) {
    k_size += std::pow(distance(token.k, Row(token.k.size())), 2);
    v_size += std::pow(distance(token.v, Row(token.v.size())), 2);
  }
  std::vector<std::pair<double, uint32_t>> ranked;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const uint32_t pos = tokens[i].pos;
    const double n = static_cast<double>(tokens.size());
    ranked.emplace_back(-distance(tokens[i].k, keys_[layer][pos]) / std::sqrt(k_size / n) -
                            distance(tokens[i].v, values_[layer][pos]) / std::sqrt(v_size / n),
                        i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<Token> kept;
  for (uint32_t i = 0; i < tokens.size(); ++i)
    for (uint32_t rank = 0; rank < count; ++rank)
      if (ranked[rank].second == i) kept.push_back(tokens[i]);
  return kept;
}

std::vector<double> BlendOracle::blend(const Wanted& wanted) {
  const auto clear = [&] { keys_ = values_ = std::vector<std::vector<Row>>(shape_.n_layers); };
  std::vector<std::vector<Row>> merged_k(shape_.n_layers), merged_v(shape_.n_layers);
  const auto n_lead = static_cast<uint32_t>(wanted.lead.size());
  const auto take = [&](uint32_t begin, uint32_t n) {
    for (uint32_t layer = 0; layer < shape_.n_layers; ++layer)
      for (uint32_t pos = begin; pos < begin + n; ++pos) {
        merged_k[layer].push_back(keys_[layer][pos]);
        merged_v[layer].push_back(values_[layer][pos]);
      }
  };
  clear();
  std::vector<Token> lead = tokens_at(wanted.lead, 0);
  read(lead);
  take(0, n_lead);
  uint32_t at = n_lead;
  std::vector<TokenId> context;
  for (const auto& chunk : wanted.chunks) {
    clear();
    const uint32_t before = wanted.behind_lead ? n_lead : 0;
    std::vector<TokenId> ids(wanted.lead.begin(), wanted.lead.begin() + before);
    ids.insert(ids.end(), chunk.begin(), chunk.end());
    std::vector<Token> alone = tokens_at(ids, 0);
    read(alone);
    const auto n = static_cast<uint32_t>(chunk.size());
    if (wanted.turns)  // by the distance from where the chunk was read
      for (uint32_t layer = 0; layer < shape_.n_layers; ++layer)
        for (uint32_t i = 0; i < n; ++i) {
          Row& key = keys_[layer][before + i];
          const std::vector<float> old(key.begin(), key.end());
          key = turned(old.data(), shape_.n_kv_heads, at - before);
        }
    take(before, n);
    at += n;
    context.insert(context.end(), chunk.begin(), chunk.end());
  }
  keys_ = merged_k;
  values_ = merged_v;
  chosen_.clear();
  if (!wanted.counts.empty()) {
    const bool first_is_right = wanted.behind_lead || wanted.lead.empty();
    const auto skip = static_cast<uint32_t>(first_is_right ? wanted.chunks[0].size() : 0);
    std::vector<Token> going = tokens_at(std::span(context).subspan(skip), n_lead + skip);
    for (uint32_t layer = 0; layer < shape_.n_layers; ++layer) {
      for (Token& token : going) project(layer, token);
      if (wanted.counts[layer] < going.size())
        going = chosen_of(layer, going, wanted.counts[layer]);
      chosen_.emplace_back();
      for (Token& token : going) {
        store(layer, token);
        chosen_.back().push_back(token.pos);
      }
      for (Token& token : going) finish_layer(layer, token);
    }
  }
  std::vector<Token> question = tokens_at(wanted.question, at);
  read(question);
  std::vector<float> logits(shape_.vocab_size);
  model_.logits(question.back().h.data(), 1, logits.data());
  return {logits.begin(), logits.end()};
}

}  // namespace kvasir::test
