// Rotary position embedding (RoPE): what a model says about it, and the table that rotates by it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/platform/thread_pool.h"
#include "kernels/rope.h"

namespace kvasir {

using kernels::RopePairing;
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

// Rotates by any positions up to 2^32 with angles in double. Immutable: any thread may call it.
class RopeTable {
 public:
  // With a pool, which must outlive the table, its workers share the tokens of a large call.
  explicit RopeTable(const RopeConfig& config, uint32_t max_context, ThreadPool* pool = nullptr);
  // In place on [n_tokens, n_heads, head_dim] f32, contiguous; one position per token. kv_len: the
  // current length of the sequence, which dynamic NTK scales with. The bits of a token depend
  // neither on the other tokens of the call nor on the number of workers.
  void apply(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
             std::span<const uint32_t> pos, uint64_t kv_len) const;
  // cos and sin of what apply() turns by, times its magnitude: [pos.size(), n_pairs()] each.
  void angles(std::span<const uint32_t> pos, uint64_t kv_len, float* cos, float* sin) const;
  uint32_t n_pairs() const { return config_.n_dims / 2; }
  RopePairing pairing() const { return config_.pairing; }
  // Whether kv_len changes what apply() does.
  bool turns_by_length(uint64_t kv_len) const {
    return config_.scaling == RopeScaling::kDynamicNtk && kv_len > config_.original_context;
  }
  // Moves what apply() has rotated by `delta` positions: apply(p), shift(d) = apply(p + d).
  void shift(float* x, uint32_t n_tokens, uint32_t n_heads, uint32_t head_dim,
             std::span<const int32_t> delta, uint64_t kv_len) const;

 private:
  struct Turn {
    double cos, sin;
  };
  struct Heads {  // of one token
    uint32_t n_heads, head_dim;
  };
  template <class Pos>
  void rotate(float* x, uint32_t n_tokens, const Heads& heads, std::span<const Pos> pos,
              double magnitude, uint64_t kv_len) const;
  const std::vector<double>& frequencies_at(uint64_t kv_len, std::vector<double>& of_length) const;
  void turn(const std::vector<double>& frequencies, int64_t pos, double magnitude, float* cos,
            float* sin) const;

  RopeConfig config_;
  ThreadPool* pool_;                 // or null
  double magnitude_;                 // of cos and sin: YaRN's attention temperature
  std::vector<double> frequencies_;  // [n_dims / 2] radians per position
  std::vector<Turn> coarse_, fine_;  // [n, n_dims / 2]: every 2048th position, and those between
};

}  // namespace kvasir
