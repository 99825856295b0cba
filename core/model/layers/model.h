// A dense-decoder transformer as the pieces that the step loop calls in turn: everything but
// attention. Weights come from a GGUF; matrix products are oneDNN's or our own (panel_matrix.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/model/gguf/gguf.h"
#include "core/model/layers/compute.h"
#include "core/model/layers/rope.h"
#include "core/model/layers/shape.h"
#include "core/platform/thread_pool.h"

namespace kvasir {

// All activations are f32, row-major [n_tokens, width]; n_tokens of one call may come from several
// sequences, and is at most Options::max_batch_tokens. Not thread-safe: one step at a time;
// parallel inside through the pool. The GgufFile must outlive the model: embedding rows are read
// from it.
// Rows that one call returns and a later one of the same step takes (x from attn_norm, h from one
// layer to the next) are not changed in between: layers on a device keep them there, and copy them
// to the host only for who reads them (read_hidden, read_input). So do they with what
// project_turned() projects (read_projected).
class Model {
 public:
  struct Options {
    Compute compute = Compute::kF32;
    uint32_t max_batch_tokens = 512;  // largest n_tokens of a call: sizes scratch
    // A token's result does not depend on the other tokens of a call, bit for bit. It never does in
    // f32, and in int8 only on a CPU with AMX.
    bool deterministic = false;
    // The last so many layers on a device, as llama.cpp counts them: with more than the model has,
    // the head's product, too. Their products are exact in f32 and with `deterministic`; else few
    // rows are multiplied by the weights of the file in f32, many in bf16, whatever `compute` says.
    uint32_t device_layers = 0;
    std::string device_library{};  // the file that computes them, see device_layers.h
  };
  static std::unique_ptr<Model> load(const GgufFile& file, ThreadPool& pool,
                                     const Options& options);
  // Of a file's products: `options.compute`, but plain_compute() where kInt8 is wanted and no
  // matrix is quantised in a type that it knows.
  struct Arithmetic {
    Compute compute;
    bool tokens_are_independent;  // as below
  };
  static Arithmetic arithmetic(const GgufFile& file, const Options& options);
  virtual ~Model() = default;

  // What load() will allocate: weights after conversion, scratch. For `plan`, before loading.
  struct Memory {
    uint64_t weight_bytes, scratch_bytes;  // of main memory
    bool may_round = false;                // as the model will say
    uint64_t device_weight_bytes = 0, device_scratch_bytes = 0;
  };
  static Memory plan_memory(const GgufFile& file, const Options& options);
  // Without a file: of one in bf16.
  static Memory plan_memory(const ModelShape& shape, const Options& options);

  virtual const ModelShape& shape() const = 0;
  virtual const RopeTable& rope(uint32_t layer) const = 0;
  virtual Compute compute() const { return Compute::kF32; }
  // Whether attention may round what it multiplies (kvasir_geometry::may_round): unless Options
  // asked for kF32. compute() may be kF32 all the same, where this CPU gains nothing by bf16.
  virtual bool may_round() const { return false; }
  // Whether a token has the same bits whatever other tokens share its call.
  virtual bool tokens_are_independent() const { return true; }
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
  // h += o Wo, normalised where the model does. o: of the host, or projected_on_device()'s.
  virtual void attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const = 0;
  virtual void ffn(uint32_t layer, float* h, uint32_t n) const = 0;  // h += ffn(norm(h))
  // Whether the last layer's attn_output() and ffn() may be left out for tokens whose logits nobody
  // asks for.
  virtual bool ends_at_logits() const { return true; }
  // Both: what lies between them need not leave a device.
  virtual void finish_layer(uint32_t layer, const float* o, uint32_t n, float* h) const {
    attn_output(layer, o, n, h);
    ffn(layer, h, n);
  }
  virtual void logits(const float* h, uint32_t n, float* out) const = 0;  // final norm, lm head

  // RoPE of rows [first, first + pos.size()) of a call: of q, and of k unless it is to stay as it
  // is. kv_len: as RopeTable::apply.
  struct Turn {
    uint32_t first = 0;
    std::span<const uint32_t> pos{};
    uint64_t kv_len = 0;
    bool turns_k = true;
  };
  // project_qkv() and rope(layer); rows of no turn stay as they are projected. Of a layer on a
  // device q, k and v are there, until read_projected().
  virtual void project_turned(uint32_t layer, const float* x, uint32_t n,
                              std::span<const Turn> turns, float* q, float* k, float* v) const;
  // The same rows where a device has them: device memory, for plugins that work there. o and, right
  // behind it, lse [n, n_q_heads] are NaN, and may be written there: attn_output() then takes o.
  struct Projected {
    bool is_finite;  // all of q, k and v
    const float *q, *k, *v;
    float *o, *lse;
  };
  // Once they can be read there; nothing where they are on the host.
  virtual std::optional<Projected> projected_on_device() const { return {}; }
  // Whether memory that somebody allocated is of the device that layers are on.
  virtual bool is_device_memory(const void* /*data*/) const { return false; }
  // What attn_norm() and project_qkv() make of n rows that are copies of h, for a later layer than
  // the one that is computed, which goes on as if nothing had happened. x may be h.
  virtual void query_ahead(uint32_t layer, const float* h, uint32_t n, float* x, float* q) const {
    attn_norm(layer, h, n, x);
    project_qkv(layer, x, n, q, nullptr, nullptr);
  }

  // The same, turned as rope(layer) does, of all n rows of the h that the model wrote last, where a
  // device has them: device memory, until it is asked for again. Null: they are the host's.
  // q: as of project_turned(), for read_projected().
  virtual const float* query_ahead_on_device(uint32_t /*layer*/, const float* /*h*/, uint32_t /*n*/,
                                             std::span<const Turn> /*turns*/, float* /*q*/) const {
    return nullptr;
  }

  // Before the host reads rows [first, first + n) of the h, or of the x, that the model wrote last:
  // a layer on a device leaves them there. Rows that logits() is given are read before, too.
  virtual void read_hidden(float* /*h*/, uint32_t /*first*/, uint32_t /*n*/) const {}
  virtual void read_input(float* /*x*/, uint32_t /*first*/, uint32_t /*n*/) const {}
  // Likewise all rows of that one of q, k and v that project_turned() was given, or of all three;
  // or of the q that query_ahead_on_device() was given.
  virtual void read_projected(const float* /*which*/ = nullptr) const {}
  // Whether all of the h that the last layer left is finite, where a device knows; else nothing:
  // h is on the host.
  virtual std::optional<bool> hidden_is_finite() const { return {}; }
  // Pins an array that calls will be given, where a device can then copy it faster. It stays where
  // it is until unpin(). What cannot be pinned is copied all the same.
  virtual void pin(std::span<float> /*rows*/) const {}
  virtual void unpin(std::span<float> /*rows*/) const noexcept {}

  virtual uint64_t weight_bytes() const = 0;            // resident
  virtual uint64_t weight_bytes_per_token() const = 0;  // read per decoded token
  // What is on a device.
  struct Placement {
    uint32_t n_layers = 0;
    bool has_head = false;
    std::string library{};     // which code computes there; empty: nothing is on a device
    std::string text() const;  // "the last 3 layers and the head by ..."; empty likewise
    uint64_t weight_bytes = 0, scratch_bytes = 0;
    uint64_t copied_to_device = 0, copied_to_host = 0;  // of activations and angles since load()
  };
  virtual Placement placement() const { return {}; }

 protected:
  // Before anything is written: Error(kInternal) for more tokens in a call than Options allowed.
  static void check_call(uint32_t n, uint32_t most);
};

}  // namespace kvasir
