// The dense layers of a model on a device, as the core asks for them. What computes them is a
// library of the same build that is loaded at run time (device_library.h): the core neither
// includes nor links what devices need. Not a plugin: dense layers belong to the core.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/model/gguf/ggml_type.h"
#include "core/model/layers/shape.h"

namespace kvasir {

// n_out rows of n_in elements, as they lie in the file.
struct DeviceMatrix {
  GgmlType type = GgmlType::kF32;
  uint32_t n_in = 0, n_out = 0;
  std::span<const std::byte> rows;
};
using DeviceVector = std::span<const float>;  // empty: the model has none

struct DeviceLayer {
  DeviceVector attn_norm, q_bias, k_bias, v_bias, q_norm, k_norm, post_attn_norm, ffn_norm,
      post_ffn_norm;
  DeviceMatrix q, k, v, o, gate, up, down;
};
struct DeviceHead {
  DeviceVector norm;
  DeviceMatrix weights;
};

// What the arithmetic needs to know of a model.
struct DeviceShape {
  uint32_t d_model = 0, d_ff = 0, vocab_size = 0;
  uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, v_head_dim = 0;
  uint32_t rope_pairs = 0;                       // of a head, at most
  float norm_eps = 0.0f, logits_softcap = 0.0f;  // cap: 0: none
  Activation activation = Activation::kSilu;
  uint32_t max_tokens = 0;  // of a call
  bool has_head = false;
  // Every product in f32, with the numbers of the file: a row has the same bits in any company.
  // Else many rows are multiplied in bf16.
  bool exact = false;

  uint32_t q_width() const { return n_q_heads * head_dim; }
  uint32_t k_width() const { return n_kv_heads * head_dim; }
  uint32_t v_width() const { return n_kv_heads * v_head_dim; }
  uint32_t o_width() const { return n_q_heads * v_head_dim; }
};

// Device memory beside the weights, in bytes, each array apart: the plan counts what the library
// allocates.
struct DeviceBuffers {
  static constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;  // of the library of products
  static constexpr uint64_t kMostTileBytes = uint64_t{64} << 20;   // weights expanded to bf16
  static constexpr uint32_t kMostLogitRows = 64;                   // at once
  static constexpr uint32_t kAngleTables = 2;                      // layers may slide, or not
  static constexpr uint64_t kAlignment = 256;
  static constexpr uint64_t aligned(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  uint64_t hidden = 0, input = 0, normed = 0;  // [max_tokens, d_model] f32
  uint64_t q = 0, k = 0, v = 0;                // [max_tokens, width] f32
  uint64_t o = 0;                              // with lse, [max_tokens, o_width + n_q_heads] f32
  uint64_t ahead = 0;                          // as q, of a later layer
  uint64_t gate = 0, up = 0;                   // [max_tokens, d_ff] f32
  uint64_t angles = 0;  // cos or sin of a table, [max_tokens, rope_pairs] f32
  uint64_t n_bad = aligned(2 * sizeof(uint32_t));
  uint64_t logits = 0;   // [logit_rows, vocab_size] f32
  uint64_t rounded = 0;  // [max_tokens, widest input] bf16
  uint64_t tile = 0, workspace = 0;
  uint32_t logit_rows = 0;

  explicit DeviceBuffers(const DeviceShape& s) {
    const auto rows = [&](uint64_t width) { return aligned(4 * s.max_tokens * width); };
    hidden = input = normed = rows(s.d_model);
    q = rows(s.q_width());
    k = rows(s.k_width());
    v = rows(s.v_width());
    o = rows(s.o_width() + s.n_q_heads);
    ahead = q;
    gate = up = rows(s.d_ff);
    angles = rows(s.rope_pairs);
    if (s.has_head) {
      logit_rows = std::min(kMostLogitRows, s.max_tokens);
      logits = aligned(uint64_t{4} * logit_rows * s.vocab_size);
    }
    if (s.exact) return;
    const uint64_t widest = std::max({s.d_model, s.d_ff, s.o_width()});
    const uint64_t outputs =
        std::max({s.d_ff, s.q_width(), s.d_model, s.has_head ? s.vocab_size : 0});
    rounded = aligned(2 * s.max_tokens * widest);
    tile = aligned(std::max(2 * widest, std::min(kMostTileBytes, 2 * widest * outputs)));
    workspace = kWorkspaceBytes;
  }
  uint64_t n_bytes() const {
    return hidden + input + normed + q + k + v + o + ahead + gate + up + 2 * kAngleTables * angles +
           n_bad + logits + rounded + tile + workspace;
  }
};

// One sequence of calls at a time. Calls that neither read nor write arrays of the host may be put
// off until one does, or asks. Rows h (the stream of hidden states, [n, d_model]) and x (a
// layer's normalised input, likewise) stay on the device between calls; put and get copy them.
// Layers are counted from the first that was added. All arrays of the host are f32, row-major, n at
// most max_tokens (in logits(), too). Calls that write to the host return when it is written; what
// calls read of pinned arrays stays as it is until the next of those has returned.
// Throws Error: kResource where memory is lacking, kInternal for what the device's software
// refuses.
class DeviceLayers {
 public:
  virtual ~DeviceLayers() = default;

  // Copies the weights. Error(kInput) for a type that no kernel reads.
  virtual void add_layer(const DeviceLayer& layer) = 0;
  virtual void set_head(const DeviceHead& head) = 0;

  // As Model::pin.
  virtual void pin(std::span<float> rows) = 0;
  virtual void unpin(std::span<float> rows) noexcept = 0;

  virtual void put_hidden(const float* h, uint32_t n) = 0;
  virtual void put_input(const float* x, uint32_t n) = 0;
  // Rows [first, first + n), to their places in h and x.
  virtual void get_hidden(float* h, uint32_t first, uint32_t n) = 0;
  virtual void get_input(float* x, uint32_t first, uint32_t n) = 0;
  virtual bool hidden_is_finite(uint32_t n) = 0;

  // RoPE of rows of a call, by angles that stay until they are put again: cos and sin [n, n_pairs],
  // table < DeviceBuffers::kAngleTables.
  virtual void put_angles(uint32_t table, const float* cos, const float* sin, uint32_t n,
                          uint32_t n_pairs) = 0;
  struct Rows {
    uint32_t first = 0, n = 0;
  };
  struct Rotation {
    uint32_t table = 0;
    RopePairing pairing = RopePairing::kInterleaved;
    std::span<const Rows> of_q{}, of_k{};
  };

  // Memory of this device, whoever allocated it: who works there reads and writes what projected()
  // names.
  virtual bool is_device_memory(const void* data) = 0;

  // As the functions of Model, on the rows that the device has.
  virtual void attn_norm(uint32_t layer, uint32_t n) = 0;  // x = norm(h)
  // q, k and v of x, which stay on the device until they are projected again.
  virtual void project_qkv(uint32_t layer, uint32_t n, const Rotation& rotation) = 0;
  // For others on the device: waits until q, k and v are there and all of o and lse is NaN.
  struct Projected {
    bool is_finite;  // q, k and v
    const float *q, *k, *v;
    float *o, *lse;  // [n, o_width] and, directly behind it, [n, n_q_heads]
  };
  virtual Projected projected(uint32_t n) = 0;
  // Null: not wanted.
  virtual void get_projected(float* q, float* k, float* v, uint32_t n) = 0;
  // q of n rows of the host, which attn_norm() makes first where x is not null, and writes there.
  // What the device has stays.
  virtual void query_of(uint32_t layer, const float* rows, uint32_t n, float* x, float* q) = 0;
  // The same of all n rows of h as they are, normalised, and turned: it stays on the device, where
  // others may read it, until it is asked for again.
  virtual const float* query_ahead(uint32_t layer, uint32_t n, const Rotation& rotation) = 0;
  virtual void get_ahead(float* q, uint32_t n) = 0;
  // h += o Wo. o: of the host, or projected()'s.
  virtual void attn_output(uint32_t layer, const float* o, uint32_t n) = 0;
  virtual void ffn(uint32_t layer, uint32_t n) = 0;                 // h += ffn(norm(h))
  virtual void logits(const float* h, uint32_t n, float* out) = 0;  // of the host's h

  struct Copied {
    uint64_t to_device = 0, to_host = 0;  // bytes of all but weights
  };
  virtual Copied copied() const = 0;
  virtual uint64_t weight_bytes() const = 0;   // allocated, DeviceBuffers::aligned() each
  virtual uint64_t scratch_bytes() const = 0;  // DeviceBuffers::n_bytes()
};

// What the library exports as `kvasir_device_layers`. interface_id is compared before anything else
// is touched: it names the headers that both sides were compiled from, and the compiler.
struct DeviceLibraryTable {
  const char* interface_id;
  std::string (*problem)();  // why no device can be used, a sentence; empty when one can
  struct Memory {
    uint64_t free_bytes, total_bytes;
  };
  Memory (*memory)();  // of the device, at this moment
  std::unique_ptr<DeviceLayers> (*make)(const DeviceShape& shape);
};

}  // namespace kvasir
