// Weights of a softmax, and the fewest that carry a share, against a full sort in double, on every
// SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/top_mass.h"

#include <limits>
#include <numeric>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;

constexpr size_t kMassLengths[] = {1, 2, 7, 8, 9, 31, 33, 127, 1000, 4097};

std::vector<uint32_t> marked(const std::vector<float>& weight, double total, double share) {
  std::vector<uint8_t> mark(weight.size() + 1, 0);
  test::Scratch scratch(kernels::top_mass_scratch_bytes(weight.size()));
  kernels::mark_top_mass(weight.data(), weight.size(), total, share, mark.data(), scratch.get());
  CHECK(mark.back() == 0);
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < weight.size(); ++i) {
    if (mark[i]) out.push_back(i);
  }
  return out;
}

std::vector<uint32_t> by_sorting(const std::vector<float>& weight, double total, double share) {
  std::vector<uint32_t> order(weight.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return weight[a] > weight[b]; });
  double reached = 0.0;
  size_t n = 0;
  for (; n < order.size() && reached < share * total; ++n) reached += double{weight[order[n]]};
  order.resize(n);
  std::sort(order.begin(), order.end());
  return order;
}

double sum_of(const std::vector<float>& weight) {
  return std::accumulate(weight.begin(), weight.end(), 0.0);
}

}  // namespace

TEST_SUITE("kernels/top_mass") {
  TEST_CASE("weights are exponentials relative to the largest, and their sum is that of doubles") {
    test::for_each_simd_target([] {
      for (const size_t n : kMassLengths) {
        for (const float spread : {0.0f, 1.0f, 100.0f}) {
          for (const float softcap : {0.0f, 30.0f}) {
            CAPTURE(n);
            CAPTURE(spread);
            CAPTURE(softcap);
            const auto x = test::random_floats(n, spread, 911);
            const float scale = 0.125f;
            std::vector<double> y, want;
            for (const float value : x) {
              const double logit = double{scale} * double{value};
              y.push_back(softcap > 0 ? softcap * std::tanh(logit / softcap) : logit);
            }
            const double high = *std::max_element(y.begin(), y.end());
            auto got = x;
            got.push_back(42.0f);
            const double total = kernels::softmax_weights(scale, softcap, got.data(), n);
            CHECK(got.back() == 42.0f);
            got.pop_back();
            double worst = 0.0;
            for (size_t i = 0; i < n; ++i) {
              const double e = std::exp(y[i] - high);
              const double allowed =
                  4e-7 + 1.2e-7 * (std::fabs(y[i]) + std::fabs(high) + 2 * softcap);
              worst = std::max(worst, std::fabs(double{got[i]} - e) / (allowed * e + 1e-37));
            }
            CHECK(worst <= 1.0);
            CHECK(total == doctest::Approx(sum_of(got)).epsilon(1e-14));
          }
        }
      }
    });
  }

  TEST_CASE("a logit that is no finite number shows in the sum") {
    test::for_each_simd_target([] {
      for (const size_t n : kMassLengths) {
        for (const float damaged :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity()}) {
          for (const size_t at : {size_t{0}, n / 2, n - 1}) {
            auto x = test::random_floats(n, 1.0f, 912);
            x[at] = damaged;
            CHECK(std::isnan(kernels::softmax_weights(1.0f, 0.0f, x.data(), n)));
          }
        }
      }
      CHECK(kernels::softmax_weights(1.0f, 0.0f, nullptr, 0) == 0.0);
    });
  }

  TEST_CASE("the fewest weights that reach the share are those of a full sort") {
    test::for_each_simd_target([] {
      for (const size_t n : kMassLengths) {
        for (const float spread : {0.0f, 0.01f, 1.0f, 8.0f, 60.0f}) {
          auto weight = test::random_floats(n, spread, 913);
          kernels::softmax_weights(1.0f, 0.0f, weight.data(), n);
          for (size_t i = 0; i + 3 < n; i += 5) weight[i] = weight[i + 3];  // ties
          const double total = sum_of(weight);
          for (const double share : {0.0, 0.1, 0.5, 0.9, 0.95, 0.999}) {
            CAPTURE(n);
            CAPTURE(spread);
            CAPTURE(share);
            CHECK(marked(weight, total, share) == by_sorting(weight, total, share));
          }
        }
      }
    });
  }

  TEST_CASE("a share of 1 keeps every weight that counts") {
    test::for_each_simd_target([] {
      const std::vector<float> weight = {0.25f, 1.0f, 0.0f, 0.5f, 0x1p-20f};
      const auto kept = marked(weight, sum_of(weight), 1.0);
      for (const uint32_t i : {0u, 1u, 3u, 4u})
        CHECK(std::find(kept.begin(), kept.end(), i) != kept.end());
    });
  }

  TEST_CASE("of equal weights the first are marked, and earlier marks stay") {
    test::for_each_simd_target([] {
      const std::vector<float> weight(40, 0.5f);
      CHECK(marked(weight, 20.0, 0.1) == std::vector<uint32_t>{0, 1, 2, 3});
      std::vector<uint8_t> mark(40, 0);
      mark[39] = 1;
      test::Scratch scratch(kernels::top_mass_scratch_bytes(40));
      kernels::mark_top_mass(weight.data(), 40, 20.0, 0.02, mark.data(), scratch.get());
      CHECK(std::count(mark.begin(), mark.end(), 1) == 2);
      CHECK(mark[0] == 1);
      CHECK(mark[39] == 1);
    });
  }
}
