// The families of models that we compute. What sets one family apart from another stands in its
// record and nowhere else: the reader of files, the layers and the made-up models ask the record. A
// new family starts with a new record.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/layers/rope.h"
#include "core/model/layers/shape.h"

namespace kvasir {

inline constexpr uint32_t kNoLayerSlides = 0, kAllLayersSlide = UINT32_MAX;

struct Architecture {
  std::string_view name;  // general.architecture of its files, which also begins their keys
  RopePairing pairing;
  // Every model of the family has biases on its queries, keys and values (norms over the heads of
  // its queries and keys). A model of another family may have them, too.
  bool qkv_bias, qk_norm;
  // Norms of what attention and feed-forward add, and a stream that begins with embeddings times
  // sqrt(d_model).
  bool post_norms = false, scales_embedding = false;
  Activation activation = Activation::kSilu;
  // Where a file states a sliding window and no pattern: all layers have it but every n-th.
  // kNoLayerSlides: none of the family's models that we know has it, and the file is refused.
  uint32_t global_every = kNoLayerSlides;
  float sliding_rope_base =
      0.0f;  // of layers with a sliding window; 0: as the others, scaled alike
  // Of a made-up model: tokenizer.ggml.pre and add_bos_token, as most models of the family have.
  std::string_view pretokenizer;
  bool add_bos;
};

// When there is no such family: Error(kInput) that begins with `where` and lists the names of those
// there are.
const Architecture& architecture(std::string_view name, const std::string& where = "");

std::vector<std::string> architecture_names();

// Sets what follows from the family and from the counts that `shape` has: norms, activation,
// scales, the pairing of RoPE.
void take_arithmetic(const Architecture& family, ModelShape& shape);
// A window of n tokens on all layers but every `global_every`-th, or on all of them.
std::vector<uint32_t> sliding_windows(uint32_t n, uint32_t n_layers, uint32_t global_every);
// From shape.rope. base: 0 = the family's. A base of their own comes without scaling: no window is
// as long as what the model was trained on.
RopeConfig sliding_rope(const Architecture& family, const ModelShape& shape, float base);

}  // namespace kvasir
