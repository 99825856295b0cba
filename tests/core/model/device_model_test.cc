// Models whose last layers are on a device, here the emulated one: the numbers of the host's model,
// memory as planned, rows copied once, and what is said where it cannot be.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/model/layers/device_layers.h"
#include "core/model/layers/model.h"
#include "core/model/synthetic/random_model.h"
#include "kernels/cuda/emulation/memory.h"
#include "kernels/cuda/runtime.h"
#include "tests/support/dense_loop.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/npy.h"
#include "tests/support/temp_dir.h"

namespace {
using namespace kvasir;

constexpr const char* kNames[] = {"llama-gqa4-llama3", "qwen2-gqa4-yarn", "qwen3-gqa8",
                                  "gemma2-gqa2", "gemma3-gqa4"};

GgufFile golden(const std::string& name) {
  return GgufFile::open(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/" + name + ".gguf");
}

Model::Options on_device(uint32_t n_layers, Compute compute = Compute::kF32,
                         uint32_t max_tokens = 512) {
  Model::Options options{compute, max_tokens};
  options.device_layers = n_layers;
  options.device_library = KVASIR_TEST_DEVICE_LIBRARY;
  return options;
}

ThreadPool& pool() {
  static ThreadPool two(Topology::detect(), 2, false);
  return two;
}

std::vector<int32_t> some_ids(size_t n, uint32_t vocab_size) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>((i * 7919 + 13) % vocab_size);
  return ids;
}

// Logits of `ids` in steps of `piece` tokens, [ids.size(), vocab_size].
std::vector<float> logits_of(const Model& model, std::span<const int32_t> ids, size_t piece) {
  test::DenseLoop loop(model, ids.size());
  std::vector<float> all;
  for (size_t i = 0; i < ids.size(); i += piece) {
    const auto step = loop.step(ids.subspan(i, std::min(piece, ids.size() - i)));
    all.insert(all.end(), step.begin(), step.end());
  }
  return all;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = test::larger_or_nan(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

std::string refusal(const GgufFile& file, const Model::Options& options) {
  try {
    Model::load(file, pool(), options);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::kResource);
    return e.what();
  }
  return "";
}

// A model with quantised matrices, whose rows are whole blocks of 256.
GgufFile quantised(const test::TempDir& dir, GgmlType type) {
  RandomModelSpec spec;
  spec.name = "quantised";
  spec.architecture = "qwen2";
  spec.qkv_bias = true;
  spec.type = type;
  spec.n_layers = 1;
  spec.d_model = spec.d_ff = 256;
  spec.n_q_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = 64;
  spec.vocab_size = 300;
  spec.context_length = 512;
  write_random_model(spec, dir.path(spec.name));
  return GgufFile::open(dir.path(spec.name));
}

}  // namespace

TEST_SUITE_BEGIN("core/model/device");

// Logits have a standard deviation of 1.5 and more; two orders of summation differ by roundings of
// f32. tests/core/model/golden_model_test.cc compares the host's with transformers.
TEST_CASE("in f32 the logits are those of the host, however many layers are on the device") {
  for (const char* name : kNames) {
    const GgufFile file = golden(name);
    const auto host = Model::load(file, pool(), {});
    const uint32_t n_layers = host->shape().n_layers;
    const std::vector<int32_t> ids = some_ids(10, host->shape().vocab_size);
    const std::vector<float> want = logits_of(*host, ids, 10);
    for (const uint32_t n : {0u, 1u, n_layers, n_layers + 1}) {
      const auto model = Model::load(file, pool(), on_device(n));
      CHECK(model->placement().n_layers == std::min(n, n_layers));
      CHECK(model->placement().has_head == (n > n_layers));
      CHECK(model->placement().library.empty() == (n == 0));
      CHECK(model->tokens_are_independent());
      CAPTURE(std::string(name));
      CAPTURE(n);
      const std::vector<float> got = logits_of(*model, ids, 10);
      CHECK(largest_difference(got, want) < 1e-4);
      if (n > n_layers)  // in any company; few rows are graphs
        for (const size_t piece : {1u, 3u}) CHECK(got == logits_of(*model, ids, piece));
    }
  }
}

// As in tests/core/model/golden_model_test.cc: factors of 8 bits, which two layers blow up to some
// percent of a logit. Few rows are multiplied in f32.
TEST_CASE("else many rows are multiplied in bf16 and few in f32, near the host's f32") {
  for (const char* name : kNames) {
    const GgufFile file = golden(name);
    const auto host = Model::load(file, pool(), {});
    const std::vector<int32_t> ids = some_ids(10, host->shape().vocab_size);
    const std::vector<float> want = logits_of(*host, ids, 10);
    const auto model = Model::load(file, pool(), on_device(99, Compute::kInt8));
    CHECK_FALSE(model->tokens_are_independent());
    CAPTURE(std::string(name));
    const double many = largest_difference(logits_of(*model, ids, 10), want);
    CHECK(many < 0.25);
    CHECK(many > 1e-4);
    CHECK(largest_difference(logits_of(*model, ids, 5), want) < 1e-4);
    Model::Options fixed = on_device(99, Compute::kInt8);
    fixed.deterministic = true;
    const auto exact = Model::load(file, pool(), fixed);
    CHECK(largest_difference(logits_of(*exact, ids, 10), want) < 1e-4);
  }
}

TEST_CASE("quantised matrices stay as they lie: their numbers in f32, rounded once in bf16") {
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ6_K}) {
    CAPTURE(std::string(name(type)));
    const test::TempDir dir;
    const GgufFile file = quantised(dir, type);
    const auto host = Model::load(file, pool(), {});
    const std::vector<int32_t> ids = some_ids(9, 300);
    const std::vector<float> want = logits_of(*host, ids, 9);
    double size = 0.0;
    for (const float x : want) size = std::max(size, std::abs(double{x}));
    const auto exact = Model::load(file, pool(), on_device(99));
    CHECK(largest_difference(logits_of(*exact, ids, 9), want) < 1e-5 * size);
    const auto rounded = Model::load(file, pool(), on_device(99, Compute::kInt8));
    CHECK(largest_difference(logits_of(*rounded, ids, 9), want) < 0.05 * size);
    CHECK(largest_difference(logits_of(*rounded, ids, 1), want) < 1e-5 * size);
    uint64_t stored = 0;
    for (const GgufTensor& tensor : file.tensors())
      if (tensor.name != "token_embd.weight") stored += tensor.n_bytes;
    CHECK(exact->placement().weight_bytes < stored + 256 * file.tensors().size());
  }
}

TEST_CASE("memory of both sides is as planned, and the host keeps nothing of what went") {
  for (const char* name : kNames) {
    CAPTURE(std::string(name));
    const GgufFile file = golden(name);
    const uint32_t n_layers = read_shape(file).n_layers;
    const uint64_t all = Model::plan_memory(file, {}).weight_bytes;
    for (const uint32_t n : {1u, n_layers, n_layers + 1}) {
      for (const Compute compute : {Compute::kF32, Compute::kInt8}) {
        const Model::Options options = on_device(n, compute, 64);
        const Model::Memory plan = Model::plan_memory(file, options);
        const uint64_t free_before = cuda::emulation::free_bytes();
        const auto model = Model::load(file, pool(), options);
        const Model::Placement placement = model->placement();
        CHECK(placement.weight_bytes == plan.device_weight_bytes);
        CHECK(placement.scratch_bytes == plan.device_scratch_bytes);
        CHECK(free_before - cuda::emulation::free_bytes() ==
              plan.device_weight_bytes + plan.device_scratch_bytes);
        CHECK(model->weight_bytes() == plan.weight_bytes);
        CHECK(plan.weight_bytes < all);
        CHECK((plan.weight_bytes == 0) == (n > n_layers));
      }
    }
    CHECK(Model::plan_memory(file, {}).device_weight_bytes == 0);
  }
}

TEST_CASE("the stream stays on the device, and q, k and v until they are read") {
  const GgufFile file = golden("llama-gqa4-llama3");
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = 5;
  std::vector<float> h(n * s.d_model), x(h.size()),
      o(uint64_t{n} * s.n_q_heads * s.v_head_dim, 0.1f);
  std::vector<float> q(uint64_t{n} * s.n_q_heads * s.head_dim),
      k(uint64_t{n} * s.n_kv_heads * s.head_dim), v(uint64_t{n} * s.n_kv_heads * s.v_head_dim);
  const std::vector<uint32_t> pos = {0, 1, 2, 3, 4};
  const Model::Turn turns[] = {{0, pos, n, true}};
  model->embed(some_ids(n, s.vocab_size), h.data());
  for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
    model->attn_norm(layer, h.data(), n, x.data());
    model->project_turned(layer, x.data(), n, turns, q.data(), k.data(), v.data());
    model->finish_layer(layer, o.data(), n, h.data());
  }
  // Angles go there once for all layers.
  const uint64_t angles = 2 * n * model->rope(0).n_pairs();
  CHECK(model->placement().copied_to_device == 4 * (h.size() + s.n_layers * o.size() + angles));
  uint64_t to_host = 0;
  CHECK(model->placement().copied_to_host == to_host);
  const auto there = model->projected_on_device();
  REQUIRE(there);
  CHECK(there->is_finite);
  CHECK(model->is_device_memory(there->q));
  CHECK(model->placement().copied_to_host == (to_host += 2 * 4));
  model->read_projected(k.data());
  CHECK(model->placement().copied_to_host == (to_host += 4 * k.size()));
  model->read_projected();
  model->read_projected(q.data());  // they are there
  CHECK(model->placement().copied_to_host == (to_host += 4 * (q.size() + v.size())));
  model->read_hidden(h.data(), 3, 2);
  CHECK(model->placement().copied_to_host == (to_host += 4 * 2 * s.d_model));
  model->read_input(x.data(), 0, n);
  CHECK(model->placement().copied_to_host == (to_host += 4 * n * s.d_model));
  model->read_input(x.data(), 0, n);  // they are there
  CHECK(model->placement().copied_to_host == to_host);
}

TEST_CASE("few rows of a layer start as one graph, many kernel by kernel") {
  const GgufFile file = golden("qwen3-gqa8");
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const auto started = [&](uint32_t n, uint32_t first_pos) {
    std::vector<float> h(n * s.d_model), x(h.size()), q(uint64_t{n} * s.n_q_heads * s.head_dim),
        k(uint64_t{n} * s.n_kv_heads * s.head_dim), v(uint64_t{n} * s.n_kv_heads * s.v_head_dim);
    std::vector<uint32_t> pos(n, first_pos);
    const Model::Turn turns[] = {{0, pos, 100, true}};
    const cuda::Launches before = cuda::launches();
    model->embed(some_ids(n, s.vocab_size), h.data());
    for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
      model->attn_norm(layer, h.data(), n, x.data());
      model->project_turned(layer, x.data(), n, turns, q.data(), k.data(), v.data());
      model->finish_layer(layer, model->projected_on_device()->o, n, h.data());
    }
    CHECK_FALSE(*model->hidden_is_finite());  // nobody attended
    const cuda::Launches after = cuda::launches();
    return cuda::Launches{after.kernels - before.kernels, after.graphs - before.graphs};
  };
  for (const uint32_t pos : {3u, 4u})
    for (const uint32_t n : {1u, 2u}) {
      const cuda::Launches few = started(n, pos);
      CHECK(few.kernels == 0);
      CHECK(few.graphs == s.n_layers + 2);  // the first norm apart: angles come behind it
    }
  // Products go in two parts. Norms, q, k, v, norms of heads, RoPE, counts; o, norm, gate, down,
  // count.
  const cuda::Launches many = started(9, 5);
  CHECK(many.kernels == s.n_layers * (1 + 2 * 3 + 2 + 2 + 3 + 2 * 1 + 1 + 2 * 1 + 2 * 1 + 1));
  CHECK(many.graphs == 0);
}

// A row far away, two that share a place, keys that stay as they are, and rows of no turn.
TEST_CASE("RoPE on the device is the host's, for every pairing, scaling and kind of layer") {
  for (const char* name : kNames) {
    CAPTURE(std::string(name));
    const GgufFile file = golden(name);
    const auto host = Model::load(file, pool(), {});
    const auto model = Model::load(file, pool(), on_device(99));
    const ModelShape& s = model->shape();
    const uint32_t n = 7;
    std::vector<float> h(n * s.d_model), x(h.size());
    model->embed(some_ids(n, s.vocab_size), h.data());
    const std::vector<uint32_t> near = {3, 4, 4}, far = {s.max_context - 1, 0}, other = {1, 2, 3};
    const Model::Turn first[] = {{0, near, 5, true}, {3, far, s.max_context, false}},
                      second[] = {{0, other, 5, true}, {3, far, s.max_context, true}};
    for (uint32_t layer = 0; layer < s.n_layers; ++layer) {
      CAPTURE(layer);
      host->attn_norm(layer, h.data(), n, x.data());
      std::vector<float> before;
      for (const std::span<const Model::Turn> turns : {std::span(first), std::span(second)}) {
        const auto projected = [&](const Model& of) {
          std::vector<float> q(uint64_t{n} * s.n_q_heads * s.head_dim),
              k(uint64_t{n} * s.n_kv_heads * s.head_dim),
              v(uint64_t{n} * s.n_kv_heads * s.v_head_dim);
          of.project_turned(layer, x.data(), n, turns, q.data(), k.data(), v.data());
          of.read_projected();
          q.insert(q.end(), k.begin(), k.end());
          q.insert(q.end(), v.begin(), v.end());
          return q;
        };
        const std::vector<float> got = projected(*model);
        CHECK(largest_difference(got, projected(*host)) < 2e-5);
        if (!before.empty()) CHECK(largest_difference(got, before) > 1e-2);
        before = got;
      }
    }
  }
}

// Dynamic NTK turns by the length of the sequence: the same positions by other angles.
TEST_CASE("angles that the device has are not taken for those of another length") {
  const test::TempDir dir;
  RandomModelSpec spec;
  spec.name = "ntk";
  spec.architecture = "llama";
  spec.n_layers = 2;
  spec.d_model = spec.d_ff = 32;
  spec.n_q_heads = 4;
  spec.n_kv_heads = 2;
  spec.head_dim = 8;
  spec.vocab_size = 300;
  spec.context_length = 64;
  spec.rope_scaling = "dynamic";
  spec.rope_factor = 4.0f;
  write_random_model(spec, dir.path(spec.name));
  const GgufFile file = GgufFile::open(dir.path(spec.name));
  const auto host = Model::load(file, pool(), {}), model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  REQUIRE(s.rope.scaling == RopeScaling::kDynamicNtk);
  std::vector<float> x(s.d_model);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const std::vector<uint32_t> pos = {50};
  std::vector<float> q(s.n_q_heads * s.head_dim), k(s.n_kv_heads * s.head_dim), v(k.size()),
      want = q, before;
  for (const uint64_t length : {51u, 60u, 100u, 200u}) {
    CAPTURE(length);
    const Model::Turn turns[] = {{0, pos, length, true}};
    model->project_turned(0, x.data(), 1, turns, q.data(), k.data(), v.data());
    model->read_projected();
    host->project_turned(0, x.data(), 1, turns, want.data(), k.data(), v.data());
    CHECK(largest_difference(q, want) < 2e-5);
    if (!before.empty()) CHECK((before == q) == (length == 60));
    before = q;
  }
}

TEST_CASE("rows that only the device has are refused wherever the host would use them") {
  const GgufFile file = golden("llama-gqa4-llama3");
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = 3;
  std::vector<float> h(n * s.d_model), x(h.size()), logits(uint64_t{n} * s.vocab_size),
      o(uint64_t{n} * s.n_q_heads * s.v_head_dim, 0.1f);
  std::vector<float> q(uint64_t{n} * s.n_q_heads * s.head_dim);
  const auto refused = doctest::Contains("which a device has changed, are used before");
  model->embed(some_ids(n, s.vocab_size), h.data());
  CHECK_FALSE(model->hidden_is_finite());  // it is the host's
  model->attn_norm(0, h.data(), n, x.data());
  CHECK_THROWS_WITH_AS(model->project_qkv(1, x.data() + s.d_model, 1, q.data(), nullptr, nullptr),
                       refused, Error);
  model->read_input(x.data(), 0, n);
  model->project_qkv(1, x.data() + s.d_model, 1, q.data(), nullptr, nullptr);
  model->finish_layer(0, o.data(), n, h.data());
  CHECK(model->hidden_is_finite() == true);
  CHECK_THROWS_WITH_AS(model->logits(h.data(), n, logits.data()), refused, Error);
  CHECK_THROWS_WITH_AS(model->query_ahead(1, h.data() + 2 * s.d_model, 1, x.data(), q.data()),
                       refused, Error);
  CHECK_THROWS_WITH_AS(model->attn_norm(1, h.data(), n - 1, x.data()), refused, Error);
  model->read_hidden(h.data(), 0, n);
  model->attn_norm(1, h.data(), n - 1, x.data());  // as a step goes on with fewer rows
  model->logits(h.data(), n, logits.data());
  o[1] = NAN;
  model->finish_layer(1, o.data(), n - 1, h.data());
  CHECK(model->hidden_is_finite() == false);
}

// As for a layer of which is foreseen what it needs: the stream goes on as if nobody had asked.
TEST_CASE("the query of a later layer is the host's, and disturbs nothing") {
  const GgufFile file = golden("qwen3-gqa8");
  const auto host = Model::load(file, pool(), {}), model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = 3;
  std::vector<float> h(n * s.d_model), x(h.size()),
      o(uint64_t{n} * s.n_q_heads * s.v_head_dim, 0.1f);
  std::vector<float> q(uint64_t{s.n_q_heads} * s.head_dim), want_q = q, row(s.d_model), want = row;
  model->embed(some_ids(n, s.vocab_size), h.data());
  std::vector<float> on_host = h;
  host->finish_layer(0, o.data(), n, on_host.data());
  model->attn_norm(0, h.data(), n, x.data());
  model->attn_output(0, o.data(), n, h.data());
  model->read_hidden(h.data(), 1, 1);
  std::copy_n(h.begin() + s.d_model, s.d_model, row.begin());
  want = row;
  model->query_ahead(1, row.data(), 1, row.data(), q.data());
  host->query_ahead(1, want.data(), 1, want.data(), want_q.data());
  CHECK(largest_difference(row, want) < 1e-5);
  CHECK(largest_difference(q, want_q) < 2e-5);
  model->ffn(0, h.data(), n);
  model->read_hidden(h.data(), 0, n);
  CHECK(largest_difference(h, on_host) < 1e-4);
}

TEST_CASE("or it stays on the device until it is read, turned as the host turns it") {
  for (const char* name : kNames) {
    CAPTURE(std::string(name));
    const GgufFile file = golden(name);
    const auto model = Model::load(file, pool(), on_device(99)),
               half = Model::load(file, pool(), on_device(1));
    const ModelShape& s = model->shape();
    const uint32_t n = 2, target = 1;
    std::vector<float> h(n * s.d_model), x(h.size()),
        o(uint64_t{n} * s.n_q_heads * s.v_head_dim, 0.1f);
    std::vector<float> q(uint64_t{n} * s.n_q_heads * s.head_dim), want = q;
    const std::vector<uint32_t> pos = {9, s.max_context - 1};
    const Model::Turn turns[] = {{0, std::span(pos).first(1), 10},
                                 {1, std::span(pos).subspan(1), 11}};
    model->embed(some_ids(n, s.vocab_size), h.data());
    CHECK(model->query_ahead_on_device(target, h.data(), n, turns, q.data()) == nullptr);
    model->attn_norm(0, h.data(), n, x.data());
    model->attn_output(0, o.data(), n, h.data());
    CHECK(model->query_ahead_on_device(target, h.data(), n - 1, turns, q.data()) == nullptr);
    const float* const there = model->query_ahead_on_device(target, h.data(), n, turns, q.data());
    CHECK(model->is_device_memory(there));
    model->read_projected(q.data());
    model->read_hidden(h.data(), 0, n);
    CHECK(model->query_ahead_on_device(target, h.data(), n, turns, q.data()) == nullptr);
    model->query_ahead(target, h.data(), n, x.data(), want.data());
    for (uint32_t i = 0; i < n; ++i)
      model->rope(target).apply(want.data() + i * want.size() / n, 1, s.n_q_heads, s.head_dim,
                                turns[i].pos, turns[i].kv_len);
    CHECK(largest_difference(q, want) < 2e-5);
    half->embed(some_ids(n, s.vocab_size), h.data());  // layer 0 is the host's
    CHECK(half->query_ahead_on_device(target, h.data(), n, turns, q.data()) == nullptr);
  }
}

TEST_CASE("both halves of a layer are what finish_layer does, whichever array they come in") {
  const GgufFile file = golden("gemma3-gqa4");
  const auto host = Model::load(file, pool(), {});
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = 3;
  std::vector<float> h(n * s.d_model), x(h.size());
  std::vector<float> o(uint64_t{n} * s.n_q_heads * s.v_head_dim, 0.1f);
  model->embed(some_ids(n, s.vocab_size), h.data());
  model->attn_norm(0, h.data(), n, x.data());
  std::vector<float> one = h, two = h, want = h;
  model->finish_layer(0, o.data(), n, one.data());
  model->read_hidden(one.data(), 0, n);
  model->attn_output(0, o.data(), n, two.data());
  model->read_hidden(two.data(), 0, n);
  std::vector<float> other = two;  // another array: goes to the device
  model->ffn(0, other.data(), n);
  model->read_hidden(other.data(), 0, n);
  host->finish_layer(0, o.data(), n, want.data());
  CHECK(one == other);
  CHECK(largest_difference(one, want) < 1e-4);
  CHECK(largest_difference(one, h) > 1e-3);
}

TEST_CASE("a step that was given up leaves nothing behind, nor does a later layer's query") {
  const GgufFile file = golden("qwen2-gqa4-yarn");
  const auto host = Model::load(file, pool(), {});
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = 3;
  std::vector<float> h(n * s.d_model), x(h.size()), want(h.size());
  model->embed(some_ids(n, s.vocab_size), h.data());
  model->attn_norm(0, h.data(), n, x.data());  // and no more of this step
  for (float& value : h) value *= -0.5f;
  h[3] += 1.0f;
  model->attn_norm(0, h.data(), n, x.data());
  model->read_input(x.data(), 0, n);
  host->attn_norm(0, h.data(), n, want.data());
  CHECK(largest_difference(x, want) < 1e-5);

  std::vector<float> q(uint64_t{n} * s.n_q_heads * s.head_dim), ahead(q.size()), want_q(q.size());
  const std::vector<float> some(x.begin() + s.d_model, x.end());
  model->project_qkv(1, some.data(), n - 1, ahead.data(), nullptr, nullptr);
  host->project_qkv(1, some.data(), n - 1, want_q.data(), nullptr, nullptr);
  CHECK(largest_difference(ahead, want_q) < 1e-5);
  model->project_qkv(0, x.data(), n, q.data(), nullptr, nullptr);
  host->project_qkv(0, x.data(), n, want_q.data(), nullptr, nullptr);
  CHECK(largest_difference(q, want_q) < 1e-5);
}

TEST_CASE("a step wider than planned is refused before anything is written") {
  const auto model = Model::load(golden("llama-gqa1"), pool(), on_device(99, Compute::kF32, 4));
  const ModelShape& s = model->shape();
  std::vector<float> h(uint64_t{5} * s.d_model), out(uint64_t{5} * s.vocab_size);
  const char* text = "a step of 5 tokens, but the model was loaded for at most 4";
  CHECK_THROWS_WITH_AS(model->ffn(0, h.data(), 5), text, Error);
  CHECK_THROWS_WITH_AS(model->attn_norm(0, h.data(), 5, h.data()), text, Error);
  CHECK_THROWS_WITH_AS(model->logits(h.data(), 5, out.data()), text, Error);
}

TEST_CASE("logits of more rows than go at once") {
  const GgufFile file = golden("llama-gqa1");
  const auto host = Model::load(file, pool(), {});
  const auto model = Model::load(file, pool(), on_device(99));
  const ModelShape& s = model->shape();
  const uint32_t n = DeviceBuffers::kMostLogitRows * 2 + 3;
  std::vector<float> h(uint64_t{n} * s.d_model);
  for (size_t i = 0; i < h.size(); ++i) h[i] = std::sin(static_cast<float>(i));
  std::vector<float> got(uint64_t{n} * s.vocab_size), want(got.size());
  model->logits(h.data(), n, got.data());
  host->logits(h.data(), n, want.data());
  CHECK(largest_difference(got, want) < 1e-4);
}

TEST_CASE("what is lacking is said in one sentence, before the host's part is loaded") {
  const GgufFile file = golden("llama-gqa1");
  Model::Options options = on_device(1);
  options.device_library = "/nowhere/cuda_layers.so";
  CHECK(refusal(file, options) ==
        "layers on a GPU: /nowhere/cuda_layers.so does not exist: build with the preset \"cuda\", "
        "or take -ngl 0");
  options.device_library = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/llama-gqa1.gguf";
  CHECK(refusal(file, options).find("llama-gqa1.gguf cannot be loaded (") != std::string::npos);
  options.device_library = KVASIR_TEST_OTHER_LIBRARY;
  CHECK(refusal(file, options).find("is of another build (0.0.0-elsewhere, this program is of ") !=
        std::string::npos);
  options.device_library = KVASIR_TEST_NO_LIBRARY;
  CHECK(refusal(file, options).find("does not export kvasir_device_layers") != std::string::npos);

  const uint64_t whole = cuda::emulation::memory_bytes();
  const Model::Memory plan = Model::plan_memory(file, on_device(1));
  const uint64_t needed = plan.device_weight_bytes + plan.device_scratch_bytes;
  const uint64_t used = whole - cuda::emulation::free_bytes();
  cuda::emulation::set_memory(used + needed - 1);
  const std::string text = refusal(file, on_device(1));
  cuda::emulation::set_memory(used + needed);
  const auto model = Model::load(file, pool(), on_device(1));
  cuda::emulation::set_memory(whole);
  CAPTURE(text);
  CHECK(text.starts_with("layers on a GPU: 1 layers need "));
  CHECK(text.ends_with("are free: lower -ngl, or free memory of the device"));
  CHECK(model->placement().n_layers == 1);
}
