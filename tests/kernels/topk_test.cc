// Top-k against a full sort, and its ties.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

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

  TEST_CASE("of many scores, too, however they are ordered and fall into groups") {
    test::for_each_simd_target([] {
      for (const size_t n : {512, 1023, 5000, 20011}) {
        const auto random = test::random_floats(n, 1.0f, 602);
        std::vector<std::vector<float>> all{random, random, random, random, random, random};
        std::sort(all[1].begin(), all[1].end());
        std::sort(all[2].begin(), all[2].end(), std::greater<>());
        for (float& x : all[3]) x = std::round(x * 4);
        // All high ones in one group, or NaN in many.
        for (size_t i = 0; i < n; i += 128) all[4][i] = 100.0f + random[i];
        for (size_t i = 0; i < n; i += 3) all[5][i] = std::numeric_limits<float>::quiet_NaN();
        all.emplace_back(n, 0.0f);
        all.emplace_back(n, -std::numeric_limits<float>::infinity());
        all.back()[n / 2] = 1.0f;
        for (size_t list = 0; list < all.size(); ++list) {
          for (const size_t k : {size_t{1}, size_t{17}, n / 20, n / 10, n / 2, n - 1, n}) {
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(list);
            CHECK(run(all[list], k) == kernels::reference::top_k(all[list], k));
          }
        }
      }
    });
  }

  TEST_CASE("the scores from one on, without those that are no numbers") {
    test::for_each_simd_target([] {
      for (const size_t n : {0, 1, 15, 16, 40, 1000, 5000}) {
        auto score = test::random_floats(n, 1.0f, 603);
        for (size_t i = 0; i < n; i += 7) score[i] = 0.25f;
        for (size_t i = 3; i < n; i += 11) score[i] = std::numeric_limits<float>::quiet_NaN();
        std::vector<uint32_t> expected, index(n);
        for (uint32_t i = 0; i < n; ++i)
          if (score[i] >= 0.25f) expected.push_back(i);
        index.resize(kernels::list_from(score.data(), n, 0.25f, index.data()));
        CHECK(index == expected);
      }
    });
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
