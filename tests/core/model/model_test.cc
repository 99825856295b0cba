// The model's pieces against the double-precision reference, batches against single tokens, memory
// against its plan, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/model/random_model.h"
#include "core/platform/memory.h"
#include "tests/core/model/reference_model.h"
#include "tests/support/dense_loop.h"
#include "tests/support/effort.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;

// A random model in a temporary file.
class TestModel {
 public:
  explicit TestModel(const RandomModelSpec& spec)
      : path_(dir_.path(spec.name)),
        file_((write_random_model(spec, path_), GgufFile::open(path_))) {}
  const GgufFile& file() const { return file_; }

 private:
  test::TempDir dir_;
  std::string path_;
  GgufFile file_;
};

RandomModelSpec tiny(const std::string& architecture) {
  RandomModelSpec spec;
  spec.name = architecture;
  spec.architecture = architecture;
  spec.n_layers = 2;
  spec.d_model = 96;  // no multiple of a panel: 64
  spec.d_ff = 160;
  spec.n_q_heads = 6;
  spec.n_kv_heads = 2;
  spec.head_dim = 24;
  spec.vocab_size = 300;
  spec.context_length = 512;
  spec.qkv_bias = architecture == "qwen2";
  spec.qk_norm = architecture == "qwen3";
  spec.tied_embeddings = architecture == "qwen3";
  spec.norm_spread = 0.3f;
  return spec;
}

std::vector<int32_t> some_ids(size_t n, uint32_t vocab_size) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>((i * 7919 + 13) % vocab_size);
  return ids;
}

ThreadPool make_pool(uint32_t n_threads) {
  return ThreadPool(Topology::detect(), n_threads, false);
}

}  // namespace

TEST_SUITE_BEGIN("core/model/model");

TEST_CASE("logits are those of the double-precision reference") {
  ThreadPool pool = make_pool(2);
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kBF16, GgmlType::kQ8_0}) {
      CAPTURE(std::string(architecture));
      CAPTURE(std::string(name(type)));
      RandomModelSpec spec = tiny(architecture);
      spec.type = type;
      if (type == GgmlType::kQ8_0) spec.head_dim = 32;  // rows of whole blocks
      const TestModel test_model(spec);
      const auto model = Model::load(test_model.file(), pool, {});
      const auto ids = some_ids(21, spec.vocab_size);
      const auto want = test::ReferenceModel(test_model.file()).forward(ids);
      const auto got = test::DenseLoop(*model).step(ids);
      double worst = 0.0, largest = 0.0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double expected = want[i / spec.vocab_size][i % spec.vocab_size];
        worst = std::max(worst, std::abs(double{got[i]} - expected));
        largest = std::max(largest, std::abs(expected));
      }
      CHECK(largest > 0.5);  // otherwise the next line says little
      CHECK(worst < 2e-5);   // two layers of f32 sums of up to 160 products of size 1
    }
  }
}

// Every width of a step: our kernel up to 8 rows, oneDNN above, several blocks of rows above 128.
TEST_CASE("a token's result does not depend on the tokens beside it") {
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    if (!compute_supported(compute)) continue;
    ThreadPool pool = make_pool(3);
    const TestModel test_model(tiny("qwen2"));
    const auto model = Model::load(test_model.file(), pool, {compute, 300});
    const ModelShape& s = model->shape();
    const size_t q_width = s.n_q_heads * s.head_dim, k_width = s.n_kv_heads * s.head_dim;
    const size_t rows = 300;
    std::vector<float> h(rows * s.d_model);
    for (size_t i = 0; i < h.size(); ++i) h[i] = std::sin(static_cast<float>(i));
    const auto run = [&](size_t first, size_t n) {
      std::vector<float> x(h.begin() + first * s.d_model, h.begin() + (first + n) * s.d_model);
      std::vector<float> q(n * q_width), k(n * k_width), v(n * k_width), out(n * s.vocab_size);
      const auto count = static_cast<uint32_t>(n);
      model->project_qkv(1, x.data(), count, q.data(), k.data(), v.data());
      model->attn_output(1, q.data(), count, x.data());
      model->ffn(1, x.data(), count);
      model->logits(x.data(), count, out.data());
      out.insert(out.end(), k.begin(), k.end());
      return out;
    };
    std::vector<std::vector<float>> alone;
    for (size_t i = 0; i < rows; ++i) alone.push_back(run(i, 1));
    for (const size_t n : {2, 3, 4, 5, 7, 8, 9, 17, 127, 128, 129, 300}) {
      CAPTURE(n);
      const auto together = run(0, n);
      double worst = 0.0;
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < s.vocab_size; ++j) {
          const float difference = together[i * s.vocab_size + j] - alone[i][j];
          worst = std::max(worst, std::abs(double{difference}));
        }
        for (size_t j = 0; j < k_width; ++j) {
          const float difference =
              together[n * s.vocab_size + i * k_width + j] - alone[i][s.vocab_size + j];
          worst = std::max(worst, std::abs(double{difference}));
        }
      }
      // f32: another order of summing. bf16: that may round an input of the next product elsewhere.
      CHECK(worst < (compute == Compute::kF32 ? 2e-5 : 5e-2));
    }
  }
}

TEST_CASE("queries alone are those of the full projection") {
  ThreadPool pool = make_pool(1);
  const TestModel test_model(tiny("qwen3"));
  const auto model = Model::load(test_model.file(), pool, {});
  const ModelShape& s = model->shape();
  std::vector<float> x(3 * s.d_model, 0.25f), q(3 * s.n_q_heads * s.head_dim), q_alone(q.size());
  std::vector<float> k(3 * s.n_kv_heads * s.head_dim), v(k.size());
  model->project_qkv(0, x.data(), 3, q.data(), k.data(), v.data());
  model->project_qkv(0, x.data(), 3, q_alone.data(), nullptr, nullptr);
  CHECK(q == q_alone);
}

TEST_CASE("the planned memory is what loading takes") {
  RandomModelSpec spec = tiny("llama");
  spec.name = "memory";
  spec.n_layers = 4;
  spec.d_model = 1024;
  spec.d_ff = 3072;
  spec.head_dim = 64;
  spec.n_q_heads = 16;
  spec.n_kv_heads = 4;
  spec.vocab_size = 8000;
  const TestModel test_model(spec);
  ThreadPool pool = make_pool(2);
  const uint32_t n = test::few_cases() ? 64 : 512;
  std::vector<float> h(n * 1024, 0.5f), out(n * 8000);
  for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
    if (!compute_supported(compute)) continue;
    const Model::Options options{compute, n};
    const auto plan = Model::plan_memory(test_model.file(), options);
    const auto elements =
        static_cast<double>(parameter_count(spec)) - 8000.0 * 1024.0;  // embedding
    const double bytes = elements * (compute == Compute::kF32 ? 4.0 : 2.0);
    CHECK(static_cast<double>(plan.weight_bytes) == doctest::Approx(bytes).epsilon(0.02));

    const uint64_t before = memory_info().resident_bytes;
    const auto model = Model::load(test_model.file(), pool, options);
    CHECK(model->weight_bytes() == plan.weight_bytes);
    // Every part is used once with the widest step, so that scratch memory becomes resident.
    model->ffn(0, h.data(), n);
    model->logits(h.data(), n, out.data());
    // Pages of the file that were read count as resident, too.
    const uint64_t file_bytes = test_model.file().file_bytes();
    const auto grown = static_cast<double>(memory_info().resident_bytes - before);
    const auto planned = static_cast<double>(plan.weight_bytes + plan.scratch_bytes);
    CHECK(grown < planned * 1.02 + static_cast<double>(file_bytes));
    CHECK(grown > planned * 0.98);
  }
}

TEST_CASE("bytes per token are those of the weights and one row of the embedding") {
  ThreadPool pool = make_pool(1);
  const TestModel test_model(tiny("llama"));
  const auto model = Model::load(test_model.file(), pool, {});
  CHECK(model->weight_bytes_per_token() == model->weight_bytes() + 96 * 2);
}

TEST_CASE("ids outside the vocabulary and steps wider than planned are refused") {
  ThreadPool pool = make_pool(1);
  const TestModel test_model(tiny("llama"));
  const auto model = Model::load(test_model.file(), pool, {Compute::kF32, 4});
  std::vector<float> h(5 * 96), out(5 * 300);
  for (const int32_t id : {-1, 300, 1 << 30}) {
    const std::vector<int32_t> ids = {0, id};
    CHECK_THROWS_AS(model->embed(ids, h.data()), Error);
  }
  CHECK_THROWS_WITH_AS(model->ffn(0, h.data(), 5),
                       "a step of 5 tokens, but the model was loaded for at most 4", Error);
  CHECK_THROWS_AS(model->logits(h.data(), 5, out.data()), Error);
}
