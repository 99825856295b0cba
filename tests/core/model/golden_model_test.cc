// Tiny random models of every architecture and RoPE scaling against the logits that Hugging Face
// transformers computes (make_transformers_golden.py).
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/model/layers/model.h"
#include "tests/support/dense_loop.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/npy.h"

namespace {
using namespace kvasir;

constexpr const char* kNames[] = {"llama-gqa1",         "llama-gqa4-llama3", "llama-gqa8-linear",
                                  "llama-gqa2-dynamic", "qwen2-gqa4-yarn",   "qwen3-gqa8",
                                  "qwen3-gqa2-dynamic", "gemma2-gqa2",       "gemma3-gqa4"};

struct Golden {
  std::string path;
  std::vector<int32_t> ids;
  std::vector<double> logits;
};

Golden read_golden(const std::string& name) {
  const std::string base = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/" + name;
  auto arrays = test::read_npz(base + ".npz");
  Golden golden{base + ".gguf", {}, arrays.at("logits").values};
  for (const double id : arrays.at("ids").values) golden.ids.push_back(static_cast<int32_t>(id));
  return golden;
}

// Steps of `piece` tokens; rotations as for the whole sequence, as transformers does in one pass.
double largest_error(const Golden& golden, ThreadPool& pool, const Model::Options& options,
                     size_t piece) {
  const auto file = GgufFile::open(golden.path);
  const auto model = Model::load(file, pool, options);
  test::DenseLoop loop(*model, golden.ids.size());
  double worst = 0.0;
  const size_t width = model->shape().vocab_size;
  for (size_t i = 0; i < golden.ids.size(); i += piece) {
    const size_t n = std::min(piece, golden.ids.size() - i);
    const auto got = loop.step(std::span(golden.ids).subspan(i, n));
    for (size_t j = 0; j < got.size(); ++j) {
      worst = test::larger_or_nan(worst, std::abs(double{got[j]} - golden.logits[i * width + j]));
    }
  }
  return worst;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/golden");

// Logits have a standard deviation of 1.5 and more. 1e-4 is some 200 roundings of f32 at size 4;
// transformers' own error, in f32 too, is of that order.
TEST_CASE("f32 logits are those of transformers, in prefill and in decode") {
  ThreadPool pool(Topology::detect(), 2, false);
  for (const char* name : kNames) {
    const Golden golden = read_golden(name);
    for (const size_t piece : {size_t{1}, size_t{3}, size_t{40}}) {
      CAPTURE(std::string(name));
      CAPTURE(piece);
      CHECK(largest_error(golden, pool, {}, piece) < 1e-4);
    }
  }
}

// Inputs of products have 8 bits: relative error 2^-9 each, which two layers blow up to some
// percent of a logit. An error of a formula is of the size of the logits.
TEST_CASE("bf16 logits are near those of transformers") {
  if (!compute_supported(Compute::kBF16)) {
    MESSAGE("SKIPPED: no bf16 products on this CPU");
    return;
  }
  ThreadPool pool(Topology::detect(), 2, false);
  for (const char* name : kNames) {
    const Golden golden = read_golden(name);
    for (const size_t piece : {size_t{1}, size_t{40}}) {
      CAPTURE(std::string(name));
      CAPTURE(piece);
      CHECK(largest_error(golden, pool, {Compute::kBF16, 512}, piece) < 0.25);
    }
  }
}
