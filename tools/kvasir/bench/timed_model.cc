// See timed_model.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/bench/timed_model.h"

#include <chrono>

namespace kvasir::tool {
namespace {

template <class Fn>
void timed(uint64_t& nanos, const Fn& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  const auto took = std::chrono::steady_clock::now() - start;
  nanos +=
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
}

// Of one token.
uint64_t in_qkv(const ModelShape& s) {
  return uint64_t{s.d_model} * (uint64_t{s.n_q_heads + s.n_kv_heads} * s.head_dim +
                                uint64_t{s.n_kv_heads} * s.v_head_dim);
}
uint64_t in_output(const ModelShape& s) { return uint64_t{s.d_model} * s.n_q_heads * s.v_head_dim; }
uint64_t in_ffn(const ModelShape& s) { return uint64_t{3} * s.d_model * s.d_ff; }

}  // namespace

void TimedModel::embed(std::span<const int32_t> ids, float* h) const {
  timed(times_.logits, [&] { inner().embed(ids, h); });
}

void TimedModel::attn_norm(uint32_t layer, const float* h, uint32_t n, float* x) const {
  timed(times_.projections, [&] { inner().attn_norm(layer, h, n, x); });
}

void TimedModel::project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                             float* v) const {
  timed(times_.projections, [&] { inner().project_qkv(layer, x, n, q, k, v); });
  times_.multiply_adds += n * in_qkv(shape());
  if (on_project) on_project(layer, n, q, k, v);
}

// Who listens is told of what is not turned yet.
void TimedModel::project_turned(uint32_t layer, const float* x, uint32_t n,
                                std::span<const Turn> turns, float* q, float* k, float* v) const {
  if (on_project) return WrappedModel::project_turned(layer, x, n, turns, q, k, v);
  timed(times_.projections, [&] { inner().project_turned(layer, x, n, turns, q, k, v); });
  times_.multiply_adds += n * in_qkv(shape());
}

void TimedModel::attn_output(uint32_t layer, const float* o, uint32_t n, float* h) const {
  timed(times_.projections, [&] { inner().attn_output(layer, o, n, h); });
  times_.multiply_adds += n * in_output(shape());
}

void TimedModel::ffn(uint32_t layer, float* h, uint32_t n) const {
  timed(times_.ffn, [&] { inner().ffn(layer, h, n); });
  times_.multiply_adds += n * in_ffn(shape());
}

void TimedModel::logits(const float* h, uint32_t n, float* out) const {
  timed(times_.logits, [&] { inner().logits(h, n, out); });
}

void TimedModel::query_ahead(uint32_t layer, const float* h, uint32_t n, float* x, float* q) const {
  timed(times_.projections, [&] { inner().query_ahead(layer, h, n, x, q); });
}

std::optional<Model::Projected> TimedModel::projected_on_device() const {
  std::optional<Projected> there;
  timed(times_.projections, [&] { there = inner().projected_on_device(); });
  return there;
}

void TimedModel::read_projected(const float* which) const {
  timed(times_.projections, [&] { inner().read_projected(which); });
}

std::optional<bool> TimedModel::hidden_is_finite() const {
  std::optional<bool> is_finite;
  timed(times_.ffn, [&] { is_finite = inner().hidden_is_finite(); });
  return is_finite;
}

}  // namespace kvasir::tool
