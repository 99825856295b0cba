// What a model computed over one text, as a file of the safetensors format: queries, keys and
// values of recorded layers before rotation, and what decoded tokens went into each layer with.
//
// Tensors, of type F32 or F16 (header.type), where L is a layer of the model:
//   layers.L.q      [n_tokens][n_q_heads][head_dim]     before RoPE, biases and norms applied
//   layers.L.k      [n_tokens][n_kv_heads][head_dim]    likewise
//   layers.L.v      [n_tokens][n_kv_heads][v_head_dim]
//   layers.L.x      [steps][d_model]                    what queries and keys are projected from
//   layers.L.ahead  [steps][n_q_heads][head_dim]        its query, projected from the x of L - 1;
//                                                       none of layer 0
//   tokens          [n_tokens] I32
// The metadata `kvasir_trace` is the header as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/layers/rope.h"
#include "core/platform/memory.h"
#include "kernels/element_type.h"

namespace kvasir::tool {

struct TraceHeader {
  std::string model;             // its name, as its file says
  std::vector<uint32_t> layers;  // of the model, that are recorded; ascending
  uint32_t n_model_layers = 0;
  uint32_t context = 0, steps = 0;  // tokens of the prompt; decoded behind it
  uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, v_head_dim = 0, d_model = 0;
  float softmax_scale = 0;  // of q.k
  RopeConfig rope{};
  kernels::ElementType type = kernels::ElementType::kF16;

  uint32_t n_tokens() const { return context + steps; }
};

enum class TraceTensor { kQ, kK, kV, kX, kAhead };

class Trace {
 public:
  // All zeros. Error(kResource) when memory does not hold it.
  explicit Trace(TraceHeader header);

  const TraceHeader& header() const { return header_; }
  std::vector<int32_t>& tokens() { return tokens_; }  // [n_tokens]
  const std::vector<int32_t>& tokens() const { return tokens_; }
  static uint64_t bytes(const TraceHeader& header);  // of all tensors

  // `layer` counts recorded layers. A row is that of a token, of kX and kAhead of a decoded one.
  bool has(TraceTensor tensor, uint32_t layer) const;
  uint32_t n_rows(TraceTensor tensor) const;
  uint32_t row_width(TraceTensor tensor) const;  // elements
  void write_row(TraceTensor tensor, uint32_t layer, uint32_t row, const float* values);
  void read_row(TraceTensor tensor, uint32_t layer, uint32_t row, float* values) const;
  std::string tensor_name(TraceTensor tensor, uint32_t layer) const;

 private:
  friend void write_trace(const Trace& trace, const std::string& path);
  friend Trace read_trace(const std::string& path);

  std::byte* row_at(TraceTensor tensor, uint32_t layer, uint32_t row) const;
  uint64_t tensor_bytes(TraceTensor tensor) const;
  uint64_t offset_of(TraceTensor tensor, uint32_t layer) const;
  std::vector<TraceTensor> tensors_of(uint32_t layer) const;

  TraceHeader header_;
  std::vector<int32_t> tokens_;
  Region data_;
};

// The file appears when it is whole. Errors name it.
void write_trace(const Trace& trace, const std::string& path);

// Untrusted bytes: sizes are checked before memory is taken. Error(kInput) names the file and what
// is wrong with it; NaN and infinities are refused.
Trace read_trace(const std::string& path);

}  // namespace kvasir::tool
