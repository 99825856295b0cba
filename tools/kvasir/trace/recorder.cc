// See recorder.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/trace/recorder.h"

#include <numeric>
#include <vector>

namespace kvasir::tool {

std::string why_no_trace(const ModelShape& shape) {
  if (shape.n_sliding_layers() > 0) return "it has layers with a sliding window";
  if (shape.softmax_softcap != 0.0f) return "its attention has a soft cap";
  if (shape.rope.scaling == RopeScaling::kDynamicNtk)
    return "its rotation depends on the length of the sequence";
  return "";
}

TraceHeader trace_header(const ModelShape& shape, uint32_t context, uint32_t steps) {
  TraceHeader h;
  h.model = shape.name.empty() ? shape.architecture : shape.name;
  h.layers.resize(shape.n_layers);
  std::iota(h.layers.begin(), h.layers.end(), 0);
  h.n_model_layers = shape.n_layers;
  h.context = context;
  h.steps = steps;
  h.n_q_heads = shape.n_q_heads;
  h.n_kv_heads = shape.n_kv_heads;
  h.head_dim = shape.head_dim;
  h.v_head_dim = shape.v_head_dim;
  h.d_model = shape.d_model;
  h.softmax_scale = shape.attention_scale();
  h.rope = shape.rope;
  return h;
}

void record_tokens(Engine& engine, std::span<const TokenId> tokens, uint32_t steps,
                   const std::function<void(uint32_t)>& on_tokens) {
  const SequenceId seq = engine.open();
  const auto context = static_cast<uint32_t>(tokens.size() - steps);
  engine.prefill(seq, tokens.first(context), {},
                 {.progress =
                      [&](uint32_t done, uint32_t) {
                        on_tokens(done);
                        return true;
                      },
                  .all_logits = {}});
  std::vector<float> logits(engine.vocab_size());
  for (uint32_t step = 0; step < steps; ++step) {
    const Engine::DecodeItem item{seq, tokens[context + step]};
    engine.decode({&item, 1}, logits);
    on_tokens(context + step + 1);
  }
  engine.close(seq);
}

}  // namespace kvasir::tool
