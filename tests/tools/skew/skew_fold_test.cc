// Skew folded into weights: queries and keys come out skewed, and no logit changes but by rounding.
// SPDX-License-Identifier: Apache-2.0
#include "tools/skew/skew_fold.h"
#include "tests/support/larger_or_nan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "tests/support/dense_loop.h"
#include "tests/tools/skew/skew_sample.h"

namespace {
using namespace kvasir;
using test::skew_sample;
using Matrix = std::vector<double>;

std::vector<float> normal(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> out(n);
  for (float& x : out) x = draw(random);
  return out;
}

// y = W x + b in double.
Matrix product(const std::vector<float>& w, const std::vector<float>& b,
               const std::vector<float>& x) {
  Matrix y(b.begin(), b.end());
  for (size_t row = 0; row < y.size(); ++row)
    for (size_t i = 0; i < x.size(); ++i) y[row] += double{w[row * x.size() + i]} * double{x[i]};
  return y;
}

struct Unrotated : test::SkewModel {
  Unrotated() {
    spec.architecture = "qwen2";
    spec.qkv_bias = true;
    spec.rope = false;
    spec.type = GgmlType::kBF16;
  }
};

TEST_SUITE("tools/skew/skew_fold") {
  TEST_CASE("folded projections give q A and k A, and every logit of the others") {
    constexpr uint32_t kDim = 16, kIn = 24, kQHeads = 6, kKvHeads = 2, kTokens = 40;
    Unrotated m;
    m.spec.n_layers = 2;
    const auto file = m.write("m");
    // Matrices that are no identity, for two layers; the second is used.
    const SkewMatrices skew = skew_matrices(*m.load(file), m.pool, skew_sample(60), 64);
    const float* a = skew.columns.data() + kKvHeads * kDim * kDim;
    const auto wq = normal(kQHeads * kDim * kIn, 1), bq = normal(kQHeads * kDim, 2);
    const auto wk = normal(kKvHeads * kDim * kIn, 3), bk = normal(kKvHeads * kDim, 4);
    auto wq_a = wq, bq_a = bq, wk_a = wk, bk_a = bk;
    fold_skew(skew, 1, kQHeads, wq_a);
    fold_skew(skew, 1, kQHeads, bq_a);
    fold_skew(skew, 1, kKvHeads, wk_a);
    fold_skew(skew, 1, kKvHeads, bk_a);
    double off_skewed = 0, off_logit = 0, moved = 0;
    std::vector<Matrix> q, q_a, k, k_a;
    for (uint32_t t = 0; t < kTokens; ++t) {
      const auto x = normal(kIn, 10 + t);
      q.push_back(product(wq, bq, x));
      k.push_back(product(wk, bk, x));
      q_a.push_back(product(wq_a, bq_a, x));
      k_a.push_back(product(wk_a, bk_a, x));
      for (uint32_t h = 0; h < kQHeads; ++h)
        for (uint32_t c = 0; c < kDim; ++c) {
          double want = 0;
          for (uint32_t d = 0; d < kDim; ++d)
            want += q[t][h * kDim + d] * double{a[(h / 3 * kDim + c) * kDim + d]};
          off_skewed = test::larger_or_nan(off_skewed, std::abs(want - q_a[t][h * kDim + c]));
          moved = std::max(moved, std::abs(want - q[t][h * kDim + c]));
        }
    }
    for (uint32_t i = 0; i < kTokens; ++i)
      for (uint32_t j = 0; j < kTokens; ++j)
        for (uint32_t h = 0; h < kQHeads; ++h) {
          double before = 0, after = 0, size = 0;
          for (uint32_t d = 0; d < kDim; ++d) {
            const double product = q[i][h * kDim + d] * k[j][h / 3 * kDim + d];
            before += product, size += std::abs(product);
            after += q_a[i][h * kDim + d] * k_a[j][h / 3 * kDim + d];
          }
          off_logit = test::larger_or_nan(off_logit, std::abs(before - after) / size);
        }
    MESSAGE("skewed queries off by ", off_skewed, ", logits by ", off_logit, " of their terms");
    CHECK(moved > 1.0);
    // Weights of about 1, each rounded to f32 once, 25 of them in a sum; A's columns, to f32.
    CHECK(off_skewed < 2e-6);
    CHECK(off_logit < 5e-7);
  }

  TEST_CASE("a model with the skew in its weights answers as it did") {
    Unrotated m;
    const auto file = m.write("m");
    const auto model = m.load(file);
    const auto ids = skew_sample(60);
    const SkewMatrices skew = skew_matrices(*model, m.pool, ids, 64);
    write_folded_model(file, model->shape(), skew, m.dir.path("folded"));
    const auto folded_file = GgufFile::open(m.dir.path("folded"));
    const auto folded = m.load(folded_file);
    CHECK(folded->shape().rope.n_dims == 0);
    CHECK(folded_file.content_hash() != file.content_hash());
    const auto want = test::DenseLoop(*model).step(ids), got = test::DenseLoop(*folded).step(ids);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      worst = test::larger_or_nan(worst, std::abs(double{want[i]} - double{got[i]}));
      largest = std::max(largest, std::abs(double{want[i]}));
    }
    MESSAGE("logits up to ", largest, " differ by ", worst);
    CHECK(worst < 1e-5 * largest);
    // What its keys span is diagonal already: skewing the folded model again moves nothing.
    const SkewMatrices again = skew_matrices(*folded, m.pool, ids, 64);
    double off = 0;
    for (size_t i = 0; i < again.columns.size(); ++i) {
      const bool diagonal = i / 16 % 16 == i % 16;
      off = test::larger_or_nan(
          off, std::abs(std::abs(double{again.columns[i]}) - (diagonal ? 1.0 : 0.0)));
    }
    CHECK(off < 1e-2);  // near-equal singular values mix their vectors
  }

  TEST_CASE("what comes between weights and logits is named") {
    Unrotated rotating, norming;
    rotating.spec.rope = true;
    norming.spec.architecture = "qwen3";
    norming.spec.qkv_bias = false;
    norming.spec.qk_norm = true;
    for (const auto& [m, word] : {std::pair{&rotating, "RoPE"}, {&norming, "norms"}}) {
      const auto file = m->write("m");
      const auto model = m->load(file);
      CHECK_THROWS_WITH_AS(write_folded_model(file, model->shape(), {}, m->dir.path("folded")),
                           doctest::Contains(word), Error);
    }
  }
}

}  // namespace
