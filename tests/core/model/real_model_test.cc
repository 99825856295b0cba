// Small real models against logits that NumPy computed in double precision.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include "core/model/layers/model.h"
#include "tests/support/data.h"
#include "tests/support/dense_loop.h"
#include "tests/support/effort.h"
#include "tests/support/larger_or_nan.h"
#include "tests/support/npy.h"

namespace {
using namespace kvasir;

double max_error(const std::vector<float>& got, const test::NpyArray& want, size_t first_row) {
  double worst = 0.0;
  const size_t width = want.shape[1];
  for (size_t i = 0; i < got.size(); ++i) {
    worst =
        test::larger_or_nan(worst, std::abs(double{got[i]} - want.values[first_row * width + i]));
  }
  return worst;
}

}  // namespace

TEST_SUITE_BEGIN("core/model/real_model");

KVASIR_DATA_TEST_CASE("real models give the golden logits, in prefill and in decode") {
  KVASIR_REQUIRE_DATA(data);
  const Topology topology = Topology::detect();
  ThreadPool pool(topology);
  const std::vector<std::pair<const char*, const char*>> models = {
      {"stories260K.gguf", "stories260K"},
      {"babyllama-tok105.f32.gguf", "babyllama-tok105"},
      {"babyllama-tok361.f32.gguf", "babyllama-tok361"}};
  for (const auto& [file_name, golden_name] : models) {
    if (test::few_cases() && file_name != models[0].first) continue;
    CAPTURE(golden_name);
    const auto file = GgufFile::open((data / "models" / file_name).string());
    const auto model = Model::load(file, pool, {});
    auto arrays = test::read_npz((data / "golden" / (std::string(golden_name) + ".logits.npz")));
    const auto& golden = arrays.at("logits");
    std::vector<int32_t> ids;
    for (const double id : arrays.at("ids").values) ids.push_back(static_cast<int32_t>(id));
    ids.resize(golden.shape[0]);
    REQUIRE(golden.shape[1] == model->shape().vocab_size);

    test::DenseLoop loop(*model);
    const size_t prefill = 100;
    CHECK(max_error(loop.step(std::span(ids).first(prefill)), golden, 0) < 1e-3);
    double worst = 0.0;
    for (size_t i = prefill; i < ids.size(); ++i) {
      worst =
          test::larger_or_nan(worst, max_error(loop.step(std::span(ids).subspan(i, 1)), golden, i));
    }
    CHECK(worst < 1e-3);
    MESSAGE(std::string(golden_name)
            << ": " << ids.size() << " tokens, largest decode error " << worst);
  }
}
