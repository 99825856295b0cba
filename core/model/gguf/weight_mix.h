// Which element type each tensor of a model is written in: one type for all matrices, or the mixes
// of llama.cpp under their names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/gguf/ggml_type.h"

namespace kvasir {

// What the mixes ask of a model.
struct MixedModel {
  uint32_t n_layers = 0;
  bool tied_embeddings = false;  // token_embd is the output matrix, too
};

struct WeightMix {
  enum class Kind {
    kUniform,  // all matrices alike
    kSmall,    // "_S": of Q4_K, attn_v of four layers and ffn_down of an eighth are Q5_K
    kMedium,   // "_M": attn_v and ffn_down are Q6_K in the first and last eighth of the layers and
               // in every third between; both kinds write the output matrix as Q6_K
  };
  WeightMix(GgmlType all, Kind mix = Kind::kUniform) : type(all), kind(mix) {}

  GgmlType type;  // of the matrices about which the kind says nothing
  Kind kind;
  std::optional<GgmlType> output = {};  // of the output matrix, in place of what the kind says

  // Norms, biases, tensors of one dimension, and what is no weight: keep the type they have.
  static bool is_matrix(std::string_view tensor, const std::vector<uint64_t>& shape);
  // Of a matrix. Where its rows are no multiple of the type's block, the next that fits: Q5_0 for
  // Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, F16 for blocks of 32.
  GgmlType type_of(std::string_view tensor, uint64_t row_elements, const MixedModel& model) const;
  std::string name() const;    // "Q4_K_M"
  uint32_t file_type() const;  // the format's number for general.file_type
};

// In any case of letters: f32, f16, bf16, the quantised types that are written, q4_k_s, q4_k_m,
// q5_k_s, q5_k_m. Error(kInput) naming `flag` and all names.
WeightMix weight_mix_by_name(const std::string& name, const std::string& flag);
std::string weight_mix_names();  // "f32, f16, ..., q5_k_m"

}  // namespace kvasir
