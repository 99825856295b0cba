// Queries of a sample, their second moments, and the eigenvectors of these; see skew.h.
// SPDX-License-Identifier: Apache-2.0
#include "tools/skew/skew.h"

#include <kvasir/ext/draft/skew.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/platform/output_file.h"
#include "kernels/attention_prefill.h"
#include "kernels/symmetric_eigen.h"

namespace kvasir {
namespace {

constexpr uint32_t kTileQueries = 64;

// Activations of the whole sample: all tokens of a layer are there before the next one begins.
class SampleRun {
 public:
  SampleRun(const Model& model, ThreadPool& pool, std::span<const int32_t> sample, uint32_t batch)
      : model_(model),
        pool_(pool),
        n_(static_cast<uint32_t>(sample.size())),
        batch_(batch),
        h_(n_ * uint64_t{shape().d_model}),
        x_(batch * uint64_t{shape().d_model}),
        q_(n_ * q_width()),
        k_(n_ * uint64_t{shape().n_kv_heads} * shape().head_dim),
        v_(n_ * uint64_t{shape().n_kv_heads} * shape().v_head_dim),
        o_(n_ * uint64_t{shape().n_q_heads} * shape().v_head_dim),
        lse_(n_ * uint64_t{shape().n_q_heads}),
        pos_(n_) {
    std::iota(pos_.begin(), pos_.end(), 0u);
    batches([&](uint32_t at, uint32_t n) {
      model_.embed(sample.subspan(at, n), h_.data() + at * uint64_t{shape().d_model});
    });
  }

  void run_layer(uint32_t layer) {
    const ModelShape& s = shape();
    batches([&](uint32_t at, uint32_t n) {
      float* q = q_.data() + at * q_width();
      float* k = k_.data() + at * uint64_t{s.n_kv_heads} * s.head_dim;
      model_.attn_norm(layer, h_.data() + at * uint64_t{s.d_model}, n, x_.data());
      model_.project_qkv(layer, x_.data(), n, q, k,
                         v_.data() + at * uint64_t{s.n_kv_heads} * s.v_head_dim);
      model_.rope(layer).apply(q, n, s.n_q_heads, s.head_dim, {pos_.data() + at, n}, n_);
      model_.rope(layer).apply(k, n, s.n_kv_heads, s.head_dim, {pos_.data() + at, n}, n_);
    });
    attend(shape().sliding_window(layer));
    batches([&](uint32_t at, uint32_t n) {
      float* h = h_.data() + at * uint64_t{s.d_model};
      model_.attn_output(layer, o_.data() + at * uint64_t{s.n_q_heads} * s.v_head_dim, n, h);
      model_.ffn(layer, h, n);
    });
  }

  // The sum of q q^T over tokens and the query heads of the group.   out [head_dim, head_dim]
  void second_moment(uint32_t kv_head, double* out) const {
    const uint32_t dim = shape().head_dim, group = shape().group_size();
    std::fill(out, out + uint64_t{dim} * dim, 0.0);
    for (uint64_t token = 0; token < n_; ++token)
      for (uint32_t g = 0; g < group; ++g) {
        const float* q = q_.data() + token * q_width() + (uint64_t{kv_head} * group + g) * dim;
        for (uint32_t i = 0; i < dim; ++i)
          for (uint32_t j = 0; j < dim; ++j) out[uint64_t{i} * dim + j] += double{q[i]} * q[j];
      }
  }

  // The sums over tokens of |q A|, for all query heads of the group together, and of |k A|.
  //   a [column][head_dim], sums [2][head_dim]
  void column_sums(uint32_t kv_head, const float* a, float* sums) const {
    const uint32_t dim = shape().head_dim, group = shape().group_size();
    std::vector<double> sum(2 * uint64_t{dim});
    const auto add = [&](const float* x, double* to) {
      for (uint32_t c = 0; c < dim; ++c) {
        double y = 0;
        for (uint32_t d = 0; d < dim; ++d) y += double{x[d]} * a[uint64_t{c} * dim + d];
        to[c] += std::abs(y);
      }
    };
    for (uint64_t token = 0; token < n_; ++token) {
      for (uint32_t g = 0; g < group; ++g)
        add(q_.data() + token * q_width() + (uint64_t{kv_head} * group + g) * dim, sum.data());
      add(k_.data() + (token * shape().n_kv_heads + kv_head) * dim, sum.data() + dim);
    }
    std::transform(sum.begin(), sum.end(), sums, [](double x) { return static_cast<float>(x); });
  }

 private:
  const ModelShape& shape() const { return model_.shape(); }
  uint64_t q_width() const { return uint64_t{shape().n_q_heads} * shape().head_dim; }

  template <class Fn>
  void batches(Fn&& fn) const {
    for (uint32_t at = 0; at < n_; at += batch_) fn(at, std::min(batch_, n_ - at));
  }

  void attend(uint32_t window) {
    const ModelShape& s = shape();
    kernels::AttentionShape attention;
    attention.group_size = s.group_size();
    attention.head_dim = s.head_dim;
    attention.v_dim = s.v_head_dim;
    attention.softmax_scale = s.attention_scale();
    attention.softcap = s.softmax_softcap;
    const uint64_t bytes = kernels::attention_prefill_scratch_bytes(attention, kTileQueries);
    const uint32_t tiles = (n_ + kTileQueries - 1) / kTileQueries;
    pool_.parallel_for(
        uint64_t{tiles} * s.n_kv_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
          const Scratch scratch(bytes);
          for (uint64_t i = begin; i < end; ++i)
            attend_tile(attention, window, static_cast<uint32_t>(i / s.n_kv_heads) * kTileQueries,
                        static_cast<uint32_t>(i % s.n_kv_heads), scratch.data);
        });
  }

  void attend_tile(const kernels::AttentionShape& attention, uint32_t window, uint32_t begin,
                   uint32_t kv_head, void* scratch) {
    const ModelShape& s = shape();
    const uint64_t q_head = uint64_t{kv_head} * s.group_size();
    kernels::KvRows kv;
    kv.k = k_.data() + uint64_t{kv_head} * s.head_dim;
    kv.v = v_.data() + uint64_t{kv_head} * s.v_head_dim;
    kv.k_token_stride = uint64_t{s.n_kv_heads} * s.head_dim * sizeof(float);
    kv.v_token_stride = uint64_t{s.n_kv_heads} * s.v_head_dim * sizeof(float);
    kernels::QueryTile tile;
    tile.n_q = std::min(kTileQueries, n_ - begin);
    kv.end = begin + static_cast<uint32_t>(tile.n_q);
    tile.q_stride = q_width();
    tile.o_stride = uint64_t{s.n_q_heads} * s.v_head_dim;
    tile.lse_stride = s.n_q_heads;
    tile.q = q_.data() + begin * tile.q_stride + q_head * s.head_dim;
    tile.o = o_.data() + begin * tile.o_stride + q_head * s.v_head_dim;
    tile.lse = lse_.data() + begin * tile.lse_stride + q_head;
    tile.mask.q_pos = pos_.data() + begin;
    if (window != 0) tile.mask.dist_max = window;
    kernels::attention_prefill(attention, tile, {&kv, 1}, scratch);
  }

  struct Scratch {
    explicit Scratch(uint64_t bytes) : data(::operator new (bytes, std::align_val_t{64})) {}
    ~Scratch() { ::operator delete (data, std::align_val_t{64}); }
    Scratch(const Scratch&) = delete;
    void* data;
  };

  const Model& model_;
  ThreadPool& pool_;
  uint32_t n_, batch_;
  std::vector<float> h_, x_, q_, k_, v_, o_, lse_;
  std::vector<uint32_t> pos_;
};

}  // namespace

SkewMatrices skew_matrices(const Model& model, ThreadPool& pool, std::span<const int32_t> sample,
                           uint32_t max_batch_tokens,
                           const std::function<void(uint32_t done, uint32_t total)>& progress,
                           std::span<const int32_t> column_text) {
  const ModelShape& s = model.shape();
  if (sample.size() < s.head_dim)
    throw input_error("the sample has " + std::to_string(sample.size()) +
                      " tokens, fewer than head_dim = " + std::to_string(s.head_dim) +
                      ": give a longer text");
  const uint64_t square = uint64_t{s.head_dim} * s.head_dim;
  SkewMatrices out{s.n_layers, s.n_kv_heads, s.head_dim, {}};
  out.columns.resize(uint64_t{s.n_layers} * s.n_kv_heads * square);
  out.sums.resize(uint64_t{s.n_layers} * s.n_kv_heads * 2 * s.head_dim);
  const uint32_t batch = std::max(1u, max_batch_tokens);
  SampleRun run(model, pool, sample, batch);
  std::optional<SampleRun> other;
  if (!column_text.empty()) other.emplace(model, pool, column_text, batch);
  for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
    run.run_layer(layer);
    if (other) other->run_layer(layer);
    pool.parallel_for(s.n_kv_heads, 1, [&](uint64_t begin, uint64_t end, uint32_t) {
      std::vector<double> moment(square), value(s.head_dim), vector(square);
      for (uint64_t head = begin; head < end; ++head) {
        run.second_moment(static_cast<uint32_t>(head), moment.data());
        kernels::symmetric_eigen(moment.data(), s.head_dim, value.data(), vector.data());
        const uint64_t at = uint64_t{layer} * s.n_kv_heads + head;
        float* const a = out.columns.data() + at * square;
        std::transform(vector.begin(), vector.end(), a,
                       [](double x) { return static_cast<float>(x); });
        (other ? *other : run)
            .column_sums(static_cast<uint32_t>(head), a, out.sums.data() + at * 2 * s.head_dim);
      }
    });
    if (progress) progress(layer + 1, s.n_layers);
  }
  return out;
}

uint64_t skew_bytes(const ModelShape& s, uint64_t n_tokens) {
  const uint64_t per_token = uint64_t{s.d_model} +
                             uint64_t{s.n_q_heads} * (s.head_dim + s.v_head_dim + 1) +
                             uint64_t{s.n_kv_heads} * (s.head_dim + s.v_head_dim) + 1;
  const uint64_t result =  // of which writing makes a copy
      2 * uint64_t{s.n_layers} * s.n_kv_heads * s.head_dim * (s.head_dim + 2);
  return sizeof(float) * (n_tokens * per_token + result);
}

void write_skew_file(const SkewMatrices& skew, uint64_t model_hash, const std::string& path) {
  kvasir_skew_header header{};
  std::strcpy(header.magic, KVASIR_SKEW_MAGIC);
  header.version = KVASIR_SKEW_VERSION;
  header.n_layers = skew.n_layers;
  header.n_kv_heads = skew.n_kv_heads;
  header.head_dim = skew.head_dim;
  header.model_hash = model_hash;
  std::vector<float> numbers = skew.columns;
  numbers.insert(numbers.end(), skew.sums.begin(), skew.sums.end());
  const uint64_t bytes = numbers.size() * sizeof(float);
  header.checksum = XXH3_64bits(numbers.data(), bytes);
  OutputFile file(path);
  file.write(&header, sizeof header);
  file.write(numbers.data(), bytes);
  file.finish();
}

}  // namespace kvasir
