// Top-k on the device against a sort by the order that kernels/topk.h defines.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/top_k.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/kernels/cuda/device_array.h"

namespace {
using namespace kvasir::cuda;
using kvasir::test::DeviceArray;
using Scores = std::vector<float>;
using Indices = std::vector<uint32_t>;

constexpr uint32_t kUntouchedIndex = 0xdeadbeefu;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Worst first of equals is not said: a stable sort keeps in front what stood there.
Indices sorted_best(const Scores& score, size_t k, bool higher_first) {
  Indices order(score.size());
  std::iota(order.begin(), order.end(), 0u);
  if (higher_first) std::reverse(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (std::isnan(score[a]) || std::isnan(score[b]))
      return !std::isnan(score[a]) && std::isnan(score[b]);
    return score[a] > score[b];
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

struct List {
  Scores score;
  uint32_t k;
  bool higher_first;
};

void check_lists(const std::vector<List>& lists) {
  Scores scores(1, 0.0f);  // lists begin anywhere
  std::vector<uint64_t> places;
  uint64_t n_indices = 0;
  for (const List& list : lists) {
    places.push_back(scores.size());
    scores.insert(scores.end(), list.score.begin(), list.score.end());
    n_indices += std::min<uint64_t>(list.k, list.score.size()) + 1;
  }
  const DeviceArray<float> on_device(scores);
  const DeviceArray<uint32_t> index(Indices(n_indices, kUntouchedIndex));
  const auto address = [](const auto& array) { return reinterpret_cast<uint64_t>(array.data()); };
  std::vector<TopKList> sent;
  Indices want;
  for (size_t i = 0; i < lists.size(); ++i) {
    sent.push_back({address(on_device) + 4 * places[i], address(index) + 4 * want.size(),
                    static_cast<uint32_t>(lists[i].score.size()), lists[i].k, lists[i].higher_first,
                    static_cast<uint32_t>(7 * i)});
    Indices best = sorted_best(lists[i].score, lists[i].k, lists[i].higher_first);
    for (uint32_t& chosen : best) chosen += sent[i].first;
    want.insert(want.end(), best.begin(), best.end());
    want.push_back(kUntouchedIndex);
  }
  const DeviceArray<TopKList> on(sent);
  top_k(address(on), static_cast<uint32_t>(sent.size()), {});
  CHECK(index.values() == want);
}

template <class Draw>
void check_lengths(std::initializer_list<uint32_t> lengths, Draw&& draw) {
  std::vector<List> lists;
  for (const uint32_t n : lengths) {
    Scores score(n);
    for (float& x : score) x = draw();
    for (const uint32_t k : {0u, 1u, 2u, n / 3, n - std::min(n, 1u), n, n + 5})
      for (const bool higher_first : {false, true}) lists.push_back({score, k, higher_first});
  }
  check_lists(lists);
}

}  // namespace

TEST_SUITE("kernels/cuda/top_k") {
  TEST_CASE("the best of lists of every length, the empty one included, in one call") {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    check_lengths({0, 1, 2, 31, 33, 255, 256, 257, 512, 1000, 3001},
                  [&] { return normal(random); });
    check_lengths({777}, [&] { return std::ldexp(normal(random), -130); });  // mostly subnormal
    check_lengths({777}, [&] { return 1.0f + std::ldexp(normal(random), -20); });  // last digit
    check_lists({});
  }

  TEST_CASE("of equal scores the lower index, or the higher, over the borders of warps and tiles") {
    std::mt19937 random(5);
    for (const uint32_t n_values : {1u, 2u, 7u})
      check_lengths({3, 64, 257, 700},
                    [&] { return static_cast<float>(random() % n_values) - 3.0f; });
  }

  TEST_CASE("+0 equals -0, and NaN ranks below -inf") {
    const float odd[] = {0.0f, -0.0f, 1.0f,     -1.0f,   kInfinity, -kInfinity,
                         kNaN, -kNaN, -FLT_MAX, FLT_MAX, 1e-45f,    -1e-45f};
    std::mt19937 random(7);
    check_lengths({5, 40, 300, 600}, [&] { return odd[random() % std::size(odd)]; });
    const float bottom[] = {kNaN, -kNaN, -kInfinity};
    check_lengths({40, 300}, [&] { return bottom[random() % std::size(bottom)]; });
    const float zeros[] = {0.0f, -0.0f};
    check_lengths({40, 300}, [&] { return zeros[random() % std::size(zeros)]; });
    check_lengths({300}, [&] { return kNaN; });
  }
}
