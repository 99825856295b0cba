// The model's pieces against the double-precision reference, batches against single tokens, memory
// against its plan, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "core/model/layers/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/model/layers/architecture.h"
#include "core/model/layers/panel_matrix.h"
#include "core/model/synthetic/random_model.h"
#include "core/platform/memory.h"
#include "tests/core/model/reference_model.h"
#include "tests/support/dense_loop.h"
#include "tests/support/effort.h"
#include "tests/support/larger_or_nan.h"
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
  spec.qkv_bias = kvasir::architecture(architecture).qkv_bias;
  spec.qk_norm = kvasir::architecture(architecture).qk_norm;
  spec.tied_embeddings = architecture == "qwen3" || architecture.starts_with("gemma");
  if (architecture.starts_with("gemma")) spec.sliding_window = 8;
  if (architecture == "gemma2") spec.softmax_softcap = 2.0f, spec.logits_softcap = 1.5f;
  if (architecture == "gemma3") spec.n_layers = 6, spec.rope_base = 1e6f;  // the last one sees all
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
  for (const std::string& architecture : architecture_names()) {
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kBF16, GgmlType::kQ8_0}) {
      CAPTURE(architecture);
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
        worst = test::larger_or_nan(worst, std::abs(double{got[i]} - expected));
        largest = std::max(largest, std::abs(expected));
      }
      CHECK(largest > 0.5);  // otherwise the next line says little
      // two or six layers of f32 sums of up to 160 products of size 1
      CHECK(worst < 1e-5 * spec.n_layers);
    }
  }
}

namespace {

constexpr size_t kTokens = 600;

// K, V and logits of tokens [first, first + n) after one layer.
std::vector<float> layer_of_tokens(const Model& model, const std::vector<float>& h, size_t first,
                                   size_t n) {
  const ModelShape& s = model.shape();
  const size_t q_width = s.n_q_heads * s.head_dim, k_width = s.n_kv_heads * s.head_dim;
  std::vector<float> x(h.begin() + first * s.d_model, h.begin() + (first + n) * s.d_model);
  std::vector<float> q(n * q_width), k(n * k_width), v(n * k_width), out(n * s.vocab_size);
  const auto count = static_cast<uint32_t>(n);
  model.project_qkv(1, x.data(), count, q.data(), k.data(), v.data());
  model.attn_output(1, q.data(), count, x.data());
  model.ffn(1, x.data(), count);
  model.logits(x.data(), count, out.data());
  std::vector<float> results;  // all of a token side by side
  for (size_t i = 0; i < n; ++i) {
    const auto add = [&](const std::vector<float>& from, size_t width) {
      results.insert(results.end(), from.begin() + i * width, from.begin() + (i + 1) * width);
    };
    add(k, k_width);
    add(v, k_width);
    add(out, s.vocab_size);
  }
  return results;
}

std::vector<float> some_inputs(const ModelShape& shape) {
  std::vector<float> h(kTokens * shape.d_model);
  for (size_t i = 0; i < h.size(); ++i) h[i] = std::sin(static_cast<float>(i));
  return h;
}

}  // namespace

// Our kernel takes few tokens, oneDNN many, in blocks of 256: all numbers of tokens near those.
TEST_CASE("a token's result does not depend on the tokens beside it, to the bit") {
  for (const uint32_t d_ff : {160u, 1224u}) {  // one chain of sums, and three that are added up
    RandomModelSpec spec = tiny("qwen2");
    spec.d_ff = d_ff;
    const TestModel test_model(spec);
    for (const Compute compute : {Compute::kF32, Compute::kBF16}) {
      if (!compute_supported(compute)) continue;
      ThreadPool pool = make_pool(3);
      const auto model =
          Model::load(test_model.file(), pool, {compute, kTokens, compute == Compute::kBF16});
      const auto h = some_inputs(model->shape());
      const size_t every = test::few_cases() ? 29 : 1;  // which tokens are looked at
      std::vector<std::vector<float>> alone(kTokens);
      for (size_t i = 0; i < kTokens; i += every) alone[i] = layer_of_tokens(*model, h, i, 1);
      const size_t width = alone[0].size();
      for (size_t n = 1; n <= kTokens; n += test::few_cases() ? 299 : n < 66 ? 1 : 61) {
        CAPTURE(n);
        const size_t first = n * 7 % (kTokens + 1 - n);
        const auto together = layer_of_tokens(*model, h, first, n);
        for (size_t i = (first + every - 1) / every * every; i < first + n; i += every)
          CHECK(
              std::equal(alone[i].begin(), alone[i].end(), together.begin() + (i - first) * width));
      }
    }
  }
}

// What bf16 promises without it; with it, the test above.
TEST_CASE("fast bf16 stays near, whatever the tokens beside") {
  if (!compute_supported(Compute::kBF16)) return;
  ThreadPool pool = make_pool(3);
  const TestModel test_model(tiny("qwen2"));
  const auto model = Model::load(test_model.file(), pool, {Compute::kBF16, kTokens});
  const auto h = some_inputs(model->shape());
  const auto together = layer_of_tokens(*model, h, 0, kTokens);
  const size_t width = together.size() / kTokens;
  double worst = 0.0;
  for (size_t i = 0; i < kTokens; i += 7) {
    const auto alone = layer_of_tokens(*model, h, i, 1);
    for (size_t j = 0; j < width; ++j)
      worst =
          test::larger_or_nan(worst, std::abs(double{together[i * width + j]} - double{alone[j]}));
  }
  CHECK(worst < 5e-2);  // another order of sums may round an input of the next product elsewhere
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
  // Sizes do not depend on the processor, and to make up 40 million weights takes minutes there.
  if (test::emulated()) {
    MESSAGE("SKIPPED: emulated");
    return;
  }
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
    const double bytes = elements * 2.0;  // f16 in the file: kept, or rounded to bf16
    CHECK(static_cast<double>(plan.weight_bytes) == doctest::Approx(bytes).epsilon(0.02));

    const uint64_t before = memory_info().resident_bytes;
    const auto model = Model::load(test_model.file(), pool, options);
    CHECK(model->weight_bytes() == plan.weight_bytes);
    // Every part is used once with the widest step, so that scratch memory becomes resident.
    model->ffn(0, h.data(), n);
    model->logits(h.data(), n, out.data());
    // Pages of the file that were read count as resident, too.
    [[maybe_unused]] const uint64_t file_bytes = test_model.file().file_bytes();
    const auto grown = static_cast<double>(memory_info().resident_bytes - before);
    const auto planned = static_cast<double>(plan.weight_bytes + plan.scratch_bytes);
#if !defined(__SANITIZE_THREAD__)  // whose shadow memory counts as resident
    CHECK(grown < planned * 1.02 + static_cast<double>(file_bytes));
#endif
#if !defined(__SANITIZE_ADDRESS__)  // which gives back memory that was freed long before
    CHECK(grown > planned * 0.98);
#endif
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

TEST_CASE("int8 reads quantised weights as they lie, near f32, and no company changes a token") {
  RandomModelSpec spec = tiny("qwen2");
  spec.head_dim = 32;  // rows of whole blocks
  ThreadPool pool = make_pool(3);
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0}) {
    CAPTURE(std::string(name(type)));
    spec.type = type;
    const TestModel test_model(spec);
    Model::Options options{Compute::kInt8, kTokens};
    CHECK(Model::arithmetic(test_model.file(), options).tokens_are_independent ==
          !PanelProducts::in_tiles(false));
    options.deterministic = true;  // never in tiles
    const auto model = Model::load(test_model.file(), pool, options);
    const auto exact = Model::load(test_model.file(), pool, {Compute::kF32, kTokens});
    CHECK(model->compute() == Compute::kInt8);
    CHECK(model->tokens_are_independent());
    CHECK(Model::arithmetic(test_model.file(), options).compute == Compute::kInt8);
    CHECK(Model::arithmetic(test_model.file(), options).tokens_are_independent);
    CHECK(model->weight_bytes() == Model::plan_memory(test_model.file(), options).weight_bytes);
    CHECK(static_cast<double>(model->weight_bytes()) <
          static_cast<double>(exact->weight_bytes()) / (type == GgmlType::kQ8_0 ? 3.0 : 5.0));
    const auto h = some_inputs(model->shape());
    const auto want = layer_of_tokens(*exact, h, 0, kTokens);
    const auto got = layer_of_tokens(*model, h, 0, kTokens);
    double error = 0.0, size = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double{got[i]} - double{want[i]}, 2);
      size += std::pow(double{want[i]}, 2);
    }
    // Steps of 1/127 of a block's largest, through three products one behind the other.
    CHECK(std::sqrt(error / size) < 0.02);
    CHECK(error > 0.0);
    const size_t width = got.size() / kTokens;
    for (const size_t n : {1, 2, 5, 6, 7, 9, 64, 257}) {
      const size_t first = n * 7 % (kTokens + 1 - n);
      const auto some = layer_of_tokens(*model, h, first, n);
      CHECK(std::equal(some.begin(), some.end(), got.begin() + first * width));
    }
  }
}

TEST_CASE("int8 takes values and logits of rows of 16 bits, queries and keys of 8") {
  RandomModelSpec spec = tiny("qwen2");
  spec.head_dim = 32;
  spec.type = GgmlType::kQ8_0;
  const TestModel test_model(spec);
  ThreadPool pool = make_pool(2);
  Model::Options options{Compute::kInt8, kTokens};
  options.deterministic = true;  // never in tiles
  const auto model = Model::load(test_model.file(), pool, options);
  const auto exact = Model::load(test_model.file(), pool, {Compute::kF32, kTokens});
  const ModelShape& shape = model->shape();
  const auto h = some_inputs(shape);
  for (const uint32_t n : {1u, 40u}) {
    CAPTURE(n);
    const auto all = [&](const Model& m) {
      std::vector<float> x(size_t{n} * shape.d_model);
      m.attn_norm(0, h.data(), n, x.data());
      std::vector<std::vector<float>> out;
      for (const uint32_t width :
           {shape.n_q_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim,
            shape.n_kv_heads * shape.v_head_dim, shape.vocab_size})
        out.emplace_back(size_t{n} * width);
      m.project_qkv(0, x.data(), n, out[0].data(), out[1].data(), out[2].data());
      m.logits(h.data(), n, out[3].data());
      return out;
    };
    const auto got = all(*model), want = all(*exact);
    double errors[4] = {};
    for (size_t i = 0; i < 4; ++i) {
      double size = 0.0;
      for (size_t j = 0; j < got[i].size(); ++j) {
        errors[i] += std::pow(double{got[i][j]} - double{want[i][j]}, 2);
        size += std::pow(double{want[i][j]}, 2);
      }
      errors[i] = std::sqrt(errors[i] / size);
    }
    // Half a step of 1/127 of a block's largest, and 1/254 of that.
    for (const size_t of_8_bits : {0, 1}) CHECK(errors[of_8_bits] > 1e-3);
    for (const size_t of_16_bits : {2, 3}) CHECK(errors[of_16_bits] < 1e-4);
  }
}

TEST_CASE("int8 of weights that are not quantised is this CPU's plain arithmetic") {
  ThreadPool pool = make_pool(1);
  const TestModel test_model(tiny("llama"));
  const auto model = Model::load(test_model.file(), pool, {Compute::kInt8, 4});
  CHECK(model->compute() == plain_compute());
  CHECK(Model::arithmetic(test_model.file(), {Compute::kInt8, 4}).compute == plain_compute());
  CHECK(model->tokens_are_independent() == (plain_compute() == Compute::kF32));
  // Attention may round, whatever the matrices are multiplied in, unless f32 is asked for.
  const auto exact = Model::load(test_model.file(), pool, {Compute::kF32, 4});
  CHECK(model->may_round());
  CHECK(Model::plan_memory(test_model.file(), {Compute::kInt8, 4}).may_round);
  CHECK_FALSE(exact->may_round());
  CHECK_FALSE(Model::plan_memory(test_model.file(), {Compute::kF32, 4}).may_round);
}
