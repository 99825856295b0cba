// Skewing matrices: orthonormal, they diagonalise the second moment of the group's queries, and
// change no logit; the file says what it holds.
// SPDX-License-Identifier: Apache-2.0
#include "tools/skew/skew.h"
#include "tests/support/larger_or_nan.h"

#include <doctest/doctest.h>
#include <kvasir/ext/draft/skew.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "tests/support/dense_loop.h"
#include "tests/support/forwarded_model.h"
#include "tests/tools/skew/skew_sample.h"

namespace {
using namespace kvasir;
using test::skew_sample;

// Passes everything on and keeps queries and keys, before RoPE.
class Listener final : public test::ForwardedModel {
 public:
  explicit Listener(const Model& model)
      : ForwardedModel(model), q_(model.shape().n_layers), k_(q_.size()) {}
  void project_qkv(uint32_t layer, const float* x, uint32_t n, float* q, float* k,
                   float* v) const override {
    ForwardedModel::project_qkv(layer, x, n, q, k, v);
    q_[layer].insert(q_[layer].end(), q, q + uint64_t{n} * shape().n_q_heads * shape().head_dim);
    k_[layer].insert(k_[layer].end(), k, k + uint64_t{n} * shape().n_kv_heads * shape().head_dim);
  }
  const std::vector<float>& q(uint32_t layer) const { return q_[layer]; }
  const std::vector<float>& k(uint32_t layer) const { return k_[layer]; }

 private:
  mutable std::vector<std::vector<float>> q_, k_;
};

struct Tiny : test::SkewModel {
  GgufFile file = write("tiny");
  std::unique_ptr<Model> model = load(file);
};

TEST_SUITE("tools/skew/skew") {
  TEST_CASE("columns are orthonormal and diagonalise what the group's queries span") {
    Tiny tiny;
    const auto ids = skew_sample(150);
    const SkewMatrices skew = skew_matrices(*tiny.model, tiny.pool, ids, 67);
    const Listener listener(*tiny.model);
    test::DenseLoop(listener).step(ids);
    REQUIRE(skew.columns.size() == 3 * 2 * 16 * 16);
    std::vector<uint32_t> pos(ids.size());
    for (uint32_t i = 0; i < pos.size(); ++i) pos[i] = i;
    for (uint32_t layer = 0; layer < 3; ++layer) {
      auto q = listener.q(layer);
      tiny.model->rope(layer).apply(q.data(), 150, 8, 16, pos, 150);
      for (uint32_t head = 0; head < 2; ++head) {
        CAPTURE(layer);
        const float* a = skew.columns.data() + (layer * 2 + head) * 256;
        std::vector<double> moment(256);  // of skewed queries: (Q A)^T (Q A)
        double identity = 0, logit = 0;
        for (uint32_t query = 0; query < 150 * 4; ++query) {
          const float* x = q.data() + (query / 4 * 8 + head * 4 + query % 4) * 16;
          std::vector<double> y(16);
          for (uint32_t c = 0; c < 16; ++c)
            for (uint32_t d = 0; d < 16; ++d) y[c] += double{x[d]} * double{a[c * 16 + d]};
          for (uint32_t i = 0; i < 256; ++i) moment[i] += y[i / 16] * y[i % 16];
          double before = 0, after = 0;  // of the query with itself, as if it were a key
          for (uint32_t d = 0; d < 16; ++d) before += double{x[d]} * x[d], after += y[d] * y[d];
          logit = test::larger_or_nan(logit, std::abs(before - after) / before);
        }
        double off = 0;
        for (uint32_t i = 0; i < 256; ++i) {
          if (i / 16 != i % 16) off = test::larger_or_nan(off, std::abs(moment[i]));
          double dot = 0;
          for (uint32_t d = 0; d < 16; ++d)
            dot += double{a[i / 16 * 16 + d]} * double{a[i % 16 * 16 + d]};
          identity = test::larger_or_nan(identity, std::abs(dot - (i / 16 == i % 16)));
        }
        for (uint32_t c = 1; c < 16; ++c)
          CHECK(moment[c * 17] <= moment[(c - 1) * 17] * (1 + 1e-5));
        CHECK(off < 2e-4 * moment[0]);  // queries differ in rounding: other sums, other order
        CHECK(identity < 1e-6);
        CHECK(logit < 1e-6);
      }
    }
  }

  TEST_CASE("sums of skewed queries and keys are those of the sample, or of a text of their own") {
    Tiny tiny;
    const auto ids = skew_sample(90);
    auto text = skew_sample(130);
    text.erase(text.begin(), text.begin() + 90);
    for (const bool own : {false, true}) {
      const auto skew = own ? skew_matrices(*tiny.model, tiny.pool, ids, 32, {}, text)
                            : skew_matrices(*tiny.model, tiny.pool, ids, 32);
      const auto& of = own ? text : ids;
      const auto n = static_cast<uint32_t>(of.size());
      const Listener listener(*tiny.model);
      test::DenseLoop(listener).step(of);
      REQUIRE(skew.sums.size() == 3 * 2 * 2 * 16);
      std::vector<uint32_t> pos(n);
      for (uint32_t i = 0; i < n; ++i) pos[i] = i;
      for (uint32_t layer = 0; layer < 3; ++layer) {
        auto q = listener.q(layer), k = listener.k(layer);
        tiny.model->rope(layer).apply(q.data(), n, 8, 16, pos, n);
        tiny.model->rope(layer).apply(k.data(), n, 2, 16, pos, n);
        for (uint32_t head = 0; head < 2; ++head)
          for (uint32_t c = 0; c < 16; ++c) {
            const float* a = skew.columns.data() + ((layer * 2 + head) * 16 + c) * 16;
            const auto size = [&](const float* x) {
              double y = 0;
              for (uint32_t d = 0; d < 16; ++d) y += double{x[d]} * double{a[d]};
              return std::abs(y);
            };
            double of_q = 0, of_k = 0;
            for (uint32_t t = 0; t < n; ++t) {
              for (uint32_t g = 0; g < 4; ++g) of_q += size(q.data() + (t * 8 + head * 4 + g) * 16);
              of_k += size(k.data() + (t * 2 + head) * 16);
            }
            const float* got = skew.sums.data() + (layer * 2 + head) * 32;
            CHECK(got[c] == doctest::Approx(of_q).epsilon(1e-4));
            CHECK(got[16 + c] == doctest::Approx(of_k).epsilon(1e-4));
          }
      }
    }
  }

  TEST_CASE("the size of the batches changes nothing but rounding") {
    Tiny tiny;
    const auto ids = skew_sample(90);
    const SkewMatrices a = skew_matrices(*tiny.model, tiny.pool, ids, 512);
    const SkewMatrices b = skew_matrices(*tiny.model, tiny.pool, ids, 1);
    double least = 1;
    for (size_t at = 0; at < a.columns.size(); at += 16) {  // a column's sign is free
      double dot = 0;
      for (size_t d = 0; d < 16; ++d) dot += double{a.columns[at + d]} * double{b.columns[at + d]};
      least = std::min(least, std::abs(dot));
    }
    CHECK(least > 0.999);
  }

  TEST_CASE("a sample shorter than a head is refused") {
    Tiny tiny;
    CHECK_THROWS_AS(skew_matrices(*tiny.model, tiny.pool, skew_sample(15), 64), Error);
  }

  TEST_CASE("the file holds header, checksum, columns and sums") {
    const test::TempDir dir;
    const SkewMatrices skew{1, 2, 2, {1, 0, 0, 1, 0, 1, 1, 0}, {9, 8, 7, 6, 5, 4, 3, 2}};
    write_skew_file(skew, 0xabcdef, dir.path("s"));
    std::ifstream in(dir.path("s"), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    kvasir_skew_header header;
    REQUIRE(bytes.size() == sizeof header + 64);
    std::memcpy(&header, bytes.data(), sizeof header);
    CHECK(std::string(header.magic) == KVASIR_SKEW_MAGIC);
    CHECK(header.version == KVASIR_SKEW_VERSION);
    CHECK(header.n_layers == 1);
    CHECK(header.n_kv_heads == 2);
    CHECK(header.head_dim == 2);
    CHECK(header.model_hash == 0xabcdef);
    CHECK(header.checksum == XXH3_64bits(bytes.data() + sizeof header, 64));
    CHECK(std::memcmp(bytes.data() + sizeof header, skew.columns.data(), 32) == 0);
    CHECK(std::memcmp(bytes.data() + sizeof header + 32, skew.sums.data(), 32) == 0);
    CHECK_THROWS_AS(write_skew_file(skew, 1, dir.path("none/s")), Error);
  }
}

}  // namespace
