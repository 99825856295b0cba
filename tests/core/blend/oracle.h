// A blend in double precision, token by token: attention, rotation, deviations and choice are its
// own; norms, projections and feed-forward are the model's, one token at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/layers/model.h"
#include "core/model/tokenizer/tokenizer.h"

namespace kvasir::test {

using Row = std::vector<double>;

class BlendOracle {
 public:
  // A model whose RoPE is interleaved and not scaled.
  explicit BlendOracle(const Model& model);

  struct Wanted {
    std::vector<TokenId> lead;
    std::vector<std::vector<TokenId>> chunks;  // each read alone, behind lead where behind_lead
    std::vector<TokenId> question;
    bool behind_lead = false;
    bool turns = true;             // keys get their new positions
    std::vector<uint32_t> counts;  // [n_layers] tokens that go on; empty: none is computed again
  };
  // Logits behind the question.
  std::vector<double> blend(const Wanted& wanted);
  // What the blend left, rotated to where each token stands: [layer][position][kv_head * dim].
  const std::vector<std::vector<Row>>& keys() const { return keys_; }
  const std::vector<std::vector<Row>>& values() const { return values_; }
  // The positions that went on in each layer.
  const std::vector<std::vector<uint32_t>>& chosen() const { return chosen_; }

 private:
  struct Token {
    TokenId id;
    uint32_t pos;
    std::vector<float> h;  // what the layer reads
    Row q, k, v;
  };
  Row turned(const float* x, uint32_t n_heads, uint32_t pos) const;
  void project(uint32_t layer, Token& token) const;
  void finish_layer(uint32_t layer, Token& token) const;
  void store(uint32_t layer, const Token& token);
  void read(std::vector<Token>& tokens);
  std::vector<Token> tokens_at(std::span<const TokenId> ids, uint32_t first) const;
  std::vector<Token> chosen_of(uint32_t layer, const std::vector<Token>& tokens, uint32_t count);

  const Model& model_;
  const ModelShape shape_;
  std::vector<std::vector<Row>> keys_, values_;
  std::vector<std::vector<uint32_t>> chosen_;
};

}  // namespace kvasir::test
