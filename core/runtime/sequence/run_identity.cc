// See run_identity.h.
// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/sequence/run_identity.h"

#include <xxhash.h>

#include <cstdio>
#include <cstring>
#include <span>

#include "core/model/layers/onednn.h"
#include "core/platform/build_id.h"
#include "core/plugin/dtypes.h"
#include "kernels/simd_target.h"

namespace kvasir {
namespace {

class Text {
 public:
  Text& add(const char* key, const std::string& value) {
    text_ += std::string(key) + "=" + std::to_string(value.size()) + ":" + value + "\n";
    return *this;
  }
  Text& add(const char* key, uint64_t value) { return add(key, std::to_string(value)); }
  Text& add_float(const char* key, float value) {  // its bits
    char bits[32];
    std::snprintf(bits, sizeof bits, "%a", static_cast<double>(value));
    return add(key, std::string(bits));
  }
  Hash128 hash() const {
    const XXH128_hash_t hash = XXH3_128bits(text_.data(), text_.size());
    return {hash.low64, hash.high64};
  }

 private:
  std::string text_;
};

void add_rotation(Text& out, const RopeConfig& rope) {
  out.add("pairing", static_cast<uint64_t>(rope.pairing)).add("n_dims", rope.n_dims);
  out.add_float("base", rope.base).add("scaling", static_cast<uint64_t>(rope.scaling));
  out.add_float("factor", rope.factor).add("original_context", rope.original_context);
  out.add_float("attn_factor", rope.attn_factor).add_float("beta_fast", rope.beta_fast);
  out.add_float("beta_slow", rope.beta_slow).add_float("low_freq_factor", rope.low_freq_factor);
  out.add_float("high_freq_factor", rope.high_freq_factor).add("factors", rope.freq_factors.size());
  for (const float factor : rope.freq_factors) out.add_float("factor", factor);
}

void add_attention(Text& out, const Pipeline& pipeline) {
  out.add("attention", pipeline.attention->id()).add("version", pipeline.attention->version());
  out.add("code", pipeline.attention->build_id());
  for (const Pipeline::Explained& section : pipeline.explained) {
    if (section.kind != Kind::kAttention) continue;
    for (const auto& option : section.options) out.add(option.key.c_str(), option.value);
  }
}

}  // namespace

RunIdentity run_identity(const Model& model, uint64_t model_hash, const Pipeline& pipeline,
                         const kvasir_geometry& geometry, const kvasir_kv_format& format) {
  const ModelShape& shape = model.shape();
  Text text;
  text.add("kvasir", std::string(KVASIR_VERSION_TEXT))
      .add("program", build_id_of(reinterpret_cast<const void*>(&run_identity)))
      .add("simd",
           std::string(kernels::simd_target_name()) + (kernels::uses_bf16_tiles() ? " AMX" : ""))
      .add("oneDNN", OneDnnProducts::library());
  text.add("model", model_hash).add("architecture", shape.architecture);
  text.add("compute", std::string(name(model.compute())));
  text.add("plain matrices", std::string(name(plain_compute())));
  text.add("attention may round", uint64_t{model.may_round()});
  text.add("deterministic", uint64_t{model.tokens_are_independent()});
  if (const std::string placement = model.placement().text(); !placement.empty())
    text.add("on a device", placement);
  text.add("layers", geometry.n_layers).add("q_heads", geometry.n_q_heads);
  text.add("kv_heads", geometry.n_kv_heads).add("head_dim", geometry.head_dim);
  text.add("v_dim", geometry.v_dim).add("block_size", geometry.block_size);
  text.add("k_state", geometry.k_state).add_float("softmax_scale", shape.attention_scale());
  text.add_float("softcap", shape.softmax_softcap);
  add_rotation(text, shape.rope);
  text.add("storage", pipeline.storage->id()).add("version", pipeline.storage->version());
  const std::string k = dtype_list(KVASIR_DTYPE_BIT(format.dtype_k));
  const std::string v = dtype_list(KVASIR_DTYPE_BIT(format.dtype_v));
  text.add("K", k).add("V", v);
  add_attention(text, pipeline);
  return {text.hash(), (shape.name.empty() ? shape.architecture : shape.name) + ", " +
                           name(model.compute()) + ", K " + k + ", V " + v + ", blocks of " +
                           std::to_string(geometry.block_size)};
}

}  // namespace kvasir
