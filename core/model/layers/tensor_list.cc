// The list of a model's tensors, and the check of one of them.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/tensor_list.h"

#include "core/error.h"
#include "core/model/gguf/quant.h"

namespace kvasir {

std::string head_tensor(const ModelShape& shape) {
  return shape.tied_embeddings ? "token_embd.weight" : "output.weight";
}

void read_vector(const GgufFile& file, const std::string& name, float* to) {
  const GgufTensor& tensor = file.tensor(name);
  if (tensor.n_elements % block_elements(tensor.type) != 0)
    throw input_error(file.path() + ": tensor '" + name + "' cannot be of type " +
                      kvasir::name(tensor.type));
  dequantize(tensor.type, tensor.data, to, tensor.n_elements);
}

std::string shape_text(const TensorShape& shape) {
  std::string text = "{";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "}";
}

void check_tensor_shape(const GgufFile& file, const std::string& tensor,
                        const TensorShape& expected) {
  const auto& found = file.tensor(tensor).shape;
  if (found == expected) return;
  throw input_error(file.path() + ": tensor '" + tensor + "' has shape " + shape_text(found) +
                    "; the metadata implies " + shape_text(expected));
}

void for_each_tensor(const ModelShape& s, const TensorVisitor& visit) {
  const uint64_t d = s.d_model;
  const uint64_t q = uint64_t{s.n_q_heads} * s.head_dim;
  const uint64_t k = uint64_t{s.n_kv_heads} * s.head_dim;
  const uint64_t v = uint64_t{s.n_kv_heads} * s.v_head_dim;
  const uint64_t o = uint64_t{s.n_q_heads} * s.v_head_dim;
  const auto projection = [&](const std::string& tensor, uint64_t n_out) {
    visit(tensor + ".weight", {d, n_out});
    if (s.qkv_bias) visit(tensor + ".bias", {n_out});
  };
  visit("token_embd.weight", {d, s.vocab_size});
  for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    visit(blk + "attn_norm.weight", {d});
    projection(blk + "attn_q", q);
    projection(blk + "attn_k", k);
    projection(blk + "attn_v", v);
    if (s.qk_norm) {
      visit(blk + "attn_q_norm.weight", {s.head_dim});
      visit(blk + "attn_k_norm.weight", {s.head_dim});
    }
    visit(blk + "attn_output.weight", {o, d});
    if (s.post_norms) visit(blk + "post_attention_norm.weight", {d});
    visit(blk + "ffn_norm.weight", {d});
    visit(blk + "ffn_gate.weight", {d, s.d_ff});
    visit(blk + "ffn_up.weight", {d, s.d_ff});
    visit(blk + "ffn_down.weight", {s.d_ff, d});
    if (s.post_norms) visit(blk + "post_ffw_norm.weight", {d});
  }
  visit("output_norm.weight", {d});
  if (!s.tied_embeddings) visit("output.weight", {d, s.vocab_size});
}

}  // namespace kvasir
