// Top-k against a full sort, and its ties.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/topk.h"

#include <limits>

#include "tests/kernels/rows.h"

namespace {
using namespace kvasir;

std::vector<uint32_t> run(const std::vector<float>& score, size_t k) {
  std::vector<uint32_t> index(std::min(k, score.size()));
  test::Scratch scratch(kernels::top_k_scratch_bytes(score.size()));
  index.resize(kernels::top_k(score.data(), score.size(), k, index.data(), scratch.get()));
  return index;
}

}  // namespace

TEST_SUITE("kernels/topk") {
  TEST_CASE("equals a full sort, also with many ties") {
    for (const size_t n : {0, 1, 2, 100, 1000}) {
      auto score = test::random_floats(n, 1.0f, 601);
      for (size_t i = 0; i < n; i += 2) score[i] = std::round(score[i]);
      for (const size_t k : {size_t{0}, size_t{1}, n / 3, n - n / 10, n, n + 5}) {
        CHECK(run(score, k) == kernels::reference::top_k(score, k));
      }
    }
  }

  TEST_CASE("equal scores go to the lower index") {
    std::vector<float> score(12, 0.0f);
    score[5] = score[9] = 3.0f;
    CHECK(run(score, 1) == std::vector<uint32_t>{5});
    CHECK(run({-0.0f, 0.0f, -0.0f}, 2) == std::vector<uint32_t>{0, 1});
  }

  TEST_CASE("NaN ranks below everything, even -inf") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    CHECK(run({nan, -inf, -nan, inf}, 2) == std::vector<uint32_t>{1, 3});
    CHECK(run({nan, 1.0f, -nan}, 2) == std::vector<uint32_t>{0, 1});
  }
}
