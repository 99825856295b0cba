// A dense-decoder transformer (llama, qwen2, qwen3) as the pieces the step loop strings together:
// everything but attention. Weights come from a GGUF, matrix products from oneDNN.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/gguf/gguf.h"
#include "core/platform/thread_pool.h"

namespace kvasir {

enum class RopePairing {
  kInterleaved,
  kHalfSplit
};  // (2i, 2i+1) as llama GGUFs; (i, i+d/2) as qwen
enum class RopeScaling { kNone, kLinear, kDynamicNtk, kYarn, kLlama3 };

struct RopeConfig {
  RopePairing pairing = RopePairing::kInterleaved;
  uint32_t n_dims = 0;  // rotated dimensions, <= head_dim
  float base = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  uint32_t original_context = 0;              // tokens the model was trained on before scaling
  float attn_factor = 1.0f;                   // YaRN magnitude; 0 or 1 = the formula's own
  float beta_fast = 32.0f, beta_slow = 1.0f;  // YaRN
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;  // Llama 3
  std::vector<float> freq_factors{};  // rope_freqs.weight, [n_dims / 2], or empty
};

struct ModelShape {
  std::string architecture;  // llama, qwen2, qwen3
  std::string name;
  uint32_t n_layers = 0, d_model = 0, d_ff = 0, vocab_size = 0;
  uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, v_head_dim = 0;
  uint32_t max_context = 0;  // what the file claims, tokens
  float norm_eps = 1e-5f;
  bool qkv_bias = false, qk_norm = false, tied_embeddings = false;
  RopeConfig rope;
  uint32_t group_size() const { return n_q_heads / n_kv_heads; }
  // Bytes of K and V per token over all layers for the given element sizes.
  uint64_t kv_bytes_per_token(double bytes_k, double bytes_v) const;
};

// Reads and checks the shape only: for `plan` and `model info`. Error names key and file.
ModelShape read_shape(const GgufFile& file);

enum class Compute { kF32, kBF16 };
bool compute_supported(Compute compute);  // bf16 products can be created on this CPU

// Rotates by any positions up to 2^32 with angles in double. Immutable: any thread may call it.
class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config, uint32_t max_context);
  // In place on [n_tokens, n_heads, head_dim] f32 with row strides of n_heads * head_dim; pos per
  // token. kv_len: the current length of the sequence, which dynamic NTK scales with.
  void apply(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
             std::span<const uint32_t> pos, uint64_t kv_len) const;
  // Moves rows that apply() has rotated by `delta` positions: apply(p), shift(d) = apply(p + d).
  void shift(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
             std::span<const int32_t> delta, uint64_t kv_len) const;

 private:
  struct Turn {
    double cos, sin;
  };
  struct Rows {
    uint32_t n_tokens, n_heads, head_dim;
  };
  template <class Pos>
  void rotate(float* x, const Rows& rows, std::span<const Pos> pos, double magnitude,
              uint64_t kv_len) const;
  void turn(const std::vector<double>& frequencies, int64_t pos, double magnitude, float* cos,
            float* sin) const;

  RopeConfig config_;
  double magnitude_;                 // of cos and sin: YaRN's attention temperature
  std::vector<double> frequencies_;  // [n_dims / 2] radians per position
  std::vector<Turn> coarse_, fine_;  // [n, n_dims / 2]: every 2048th position, and those between
};

// All activations are f32, row-major [n_tokens, width]; n_tokens of one call may come from several
// sequences, and is at most Options::max_batch_tokens. Not thread-safe: one step at a time;
// parallel inside through the pool. The GgufFile must outlive the model: embedding rows are read
// from it.
class Model {
 public:
  struct Options {
    Compute compute = Compute::kF32;
    uint32_t max_batch_tokens = 512;  // largest n_tokens of a call: sizes scratch
    // bf16: a token's result does not depend on the other tokens of a call, bit for bit. In f32 it
    // never does.
    bool deterministic = false;
  };
  static std::unique_ptr<Model> load(const GgufFile& file, ThreadPool& pool,
                                     const Options& options);
  virtual ~Model() = default;

  // What load() will allocate: weights after conversion, scratch. For `plan`, before loading.
  struct Memory {
    uint64_t weight_bytes, scratch_bytes;
  };
  static Memory plan_memory(const GgufFile& file, const Options& options);
  static Memory plan_memory(const ModelShape& shape, const Options& options);

  virtual const ModelShape& shape() const = 0;
  virtual const RopeTable& rope() const = 0;
  // Whether a row of a call has the same bits whatever other rows the call has.
  virtual bool rows_are_independent() const { return true; }
  // Whether embed() takes the id.
  virtual bool has_token(int32_t id) const {
    return id >= 0 && static_cast<uint32_t>(id) < shape().vocab_size;
  }
  virtual void embed(std::span<const int32_t> ids, float* h) const = 0;
  virtual void attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const = 0;
  // Before RoPE; biases and qk-norm applied. q [n, n_q_heads, head_dim], k and v likewise with
  // n_kv_heads. k and v may be null: only q (speculation for a later layer).
  virtual void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                           float* v) const = 0;
  virtual void attn_output(uint32_t layer, const float* o, uint32_t n,
                           float* h) const = 0;                           // h += o Wo
  virtual void ffn(uint32_t layer, float* h, uint32_t n) const = 0;       // h += ffn(norm(h))
  virtual void logits(const float* h, uint32_t n, float* out) const = 0;  // final norm, lm head
  virtual uint64_t weight_bytes() const = 0;                              // resident
  virtual uint64_t weight_bytes_per_token() const = 0;                    // read per decoded token
};

}  // namespace kvasir
