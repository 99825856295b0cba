// Scores of several heads made one, against the rules in double, on every SIMD target.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/score_reduce.h"

#include <bit>
#include <limits>

#include "tests/kernels/rows.h"
#include "tests/support/simd.h"

namespace {
using namespace kvasir;
using kernels::ScoreRule;

constexpr size_t kScoreLengths[] = {1, 7, 16, 31, 33, 127, 255, 257, 1000};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Scores {
  size_t n_heads = 0, n = 0;
  std::vector<float> value;  // [n_heads][n]

  float& at(size_t head, size_t i) { return value[head * n + i]; }
  double at(size_t head, size_t i) const { return double{value[head * n + i]}; }
};

Scores random_scores(size_t n_heads, size_t n, float scale, uint32_t seed) {
  return {n_heads, n, test::random_floats(n_heads * n, scale, seed)};
}

std::vector<float> reduce(ScoreRule rule, const Scores& s, float scale = 1.0f) {
  std::vector<float> out(s.n + 1, 42.0f);
  kernels::reduce_scores(rule, s.value.data(), s.n_heads, s.n, scale, out.data());
  CHECK(out.back() == 42.0f);
  out.pop_back();
  return out;
}

// What the header promises bit for bit: one head after the other, in f32.
std::vector<float> one_after_the_other(ScoreRule rule, const Scores& s) {
  std::vector<float> out;
  for (size_t i = 0; i < s.n; ++i) {
    float value = rule == ScoreRule::kMax ? -test::kInf : 0.0f;
    for (size_t g = 0; g < s.n_heads; ++g) {
      const float score = s.value[g * s.n + i];
      if (rule != ScoreRule::kMax) value += score;
      if (rule == ScoreRule::kMax && value < score) value = score;
    }
    if (rule == ScoreRule::kMean) value /= static_cast<float>(s.n_heads);
    out.push_back(value);
  }
  return out;
}

// How many differ in some bit; NaN equals NaN, whatever its payload.
size_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = std::isnan(a[i])
                          ? std::isnan(b[i])
                          : std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i]);
    count += same ? 0 : 1;
  }
  return count;
}

// The sum of the heads' softmaxes, and how far the kernel may be off according to its header.
struct SoftmaxSum {
  std::vector<double> value, allowed;
};

SoftmaxSum softmax_sum(const Scores& s, double scale) {
  SoftmaxSum out{std::vector<double>(s.n), std::vector<double>(s.n, 1e-37)};
  for (size_t g = 0; g < s.n_heads; ++g) {
    double high = -HUGE_VAL, total = 0.0, weighted = 0.0;
    for (size_t i = 0; i < s.n; ++i) high = std::fmax(high, s.at(g, i));
    if (std::isinf(high)) continue;
    const auto exponent = [&](size_t i) { return scale * (s.at(g, i) - high); };
    for (size_t i = 0; i < s.n; ++i) {
      const double e = std::exp(exponent(i));
      total += e;
      if (e > 0) weighted -= exponent(i) * e;
    }
    for (size_t i = 0; i < s.n; ++i) {
      const double a = exponent(i), share = std::exp(a) / total;
      out.value[i] += share;
      // The bound, the addition to the earlier heads, and what is cut off below exp(-87).
      if (share > 0) {
        out.allowed[i] += share * (5e-7 + 1.2e-7 * (weighted / total - a));
        out.allowed[i] += 6e-8 * out.value[i];
      }
      if (a < -86.9) out.allowed[i] += 2 * share;
    }
  }
  return out;
}

// Largest error, as a multiple of what is allowed.
double softmax_error(const Scores& s, float scale) {
  const auto got = reduce(ScoreRule::kSoftmaxSum, s, scale);
  const SoftmaxSum want = softmax_sum(s, double{scale});
  double worst = 0.0;
  for (size_t i = 0; i < s.n; ++i) {
    const double off = std::fabs(double{got[i]} - want.value[i]) / want.allowed[i];
    worst = std::isnan(off) ? HUGE_VAL : std::fmax(worst, off);
  }
  return worst;
}

}  // namespace

TEST_SUITE("kernels/score_reduce") {
  TEST_CASE("sum, mean and max follow their rules") {
    test::for_each_simd_target([] {
      for (const size_t n : kScoreLengths) {
        for (size_t n_heads = 1; n_heads <= 8; ++n_heads) {
          CAPTURE(n);
          CAPTURE(n_heads);
          const Scores s = random_scores(n_heads, n, 3.0f, 801);
          std::vector<double> sum(n), mean(n), high(n, -HUGE_VAL);
          for (size_t i = 0; i < n; ++i) {
            for (size_t g = 0; g < n_heads; ++g) sum[i] += s.at(g, i);
            for (size_t g = 0; g < n_heads; ++g) high[i] = std::fmax(high[i], s.at(g, i));
            mean[i] = sum[i] / static_cast<double>(n_heads);
          }
          test::check_close(reduce(ScoreRule::kSum, s), sum, n_heads == 1 ? 0 : 1e-6);
          test::check_close(reduce(ScoreRule::kMean, s), mean, n_heads == 1 ? 0 : 1e-6);
          test::check_close(reduce(ScoreRule::kMax, s), high, 0);
        }
      }
    });
  }

  TEST_CASE("sum, mean and max have the bits of one head after the other, whatever the values") {
    test::for_each_simd_target([] {
      for (const size_t n : kScoreLengths) {
        for (size_t n_heads = 1; n_heads <= 8; ++n_heads) {
          CAPTURE(n);
          CAPTURE(n_heads);
          Scores s = random_scores(n_heads, n, 1e3f, 802);
          const float special[] = {-test::kInf, kLargest, -kLargest,  1e-42f,
                                   0.0f,        -0.0f,    test::kInf, kNan};
          for (size_t i = 0; i < s.value.size(); i += 3) s.value[i] = special[i / 3 % 8];
          for (const auto rule : {ScoreRule::kSum, ScoreRule::kMean, ScoreRule::kMax})
            CHECK(differences(reduce(rule, s), one_after_the_other(rule, s)) == 0);
        }
      }
    });
  }

  TEST_CASE("of two zeros the maximum is the earlier head's, and NaN is passed over") {
    test::for_each_simd_target([] {
      for (const size_t n : {size_t{1}, size_t{40}}) {
        Scores s{3, n, std::vector<float>(3 * n, -0.0f)};
        for (size_t i = 0; i < n; ++i) s.at(1, i) = 0.0f;
        for (const float high : reduce(ScoreRule::kMax, s)) CHECK(std::signbit(high));
        for (size_t i = 0; i < n; ++i) s.at(0, i) = s.at(2, i) = kNan;
        for (const float high : reduce(ScoreRule::kMax, s)) CHECK(high == 0.0f);
        for (float& score : s.value) score = kNan;
        for (const float high : reduce(ScoreRule::kMax, s)) CHECK(high == -test::kInf);
      }
    });
  }

  TEST_CASE("softmax_sum is the sum of the heads' softmaxes, as exactly as the header says") {
    test::for_each_simd_target([] {
      for (const size_t n : kScoreLengths) {
        for (size_t n_heads = 1; n_heads <= 8; ++n_heads) {
          CAPTURE(n);
          CAPTURE(n_heads);
          for (const float spread : {0.0f, 1.0f, 30.0f, 1000.0f}) {
            CAPTURE(spread);
            CHECK(softmax_error(random_scores(n_heads, n, spread, 803), 0.088388f) <= 1.0);
          }
        }
      }
    });
  }

  TEST_CASE("softmax_sum stays as exact over many scores") {
    test::for_each_simd_target([] {
      for (const float spread : {0.0f, 1e-3f, 10.0f}) {
        CAPTURE(spread);
        CHECK(softmax_error(random_scores(2, 200001, spread, 804), 0.1f) <= 1.0);
      }
    });
  }

  TEST_CASE("softmax_sum: -inf has no share, the largest values do not overflow") {
    test::for_each_simd_target([] {
      for (const size_t n : kScoreLengths) {
        CAPTURE(n);
        Scores s = random_scores(3, n, 5.0f, 805);
        for (size_t i = 0; i < n; ++i) {
          if (i % 3 == 1) s.at(0, i) = -test::kInf;
          if (i % 2 == 1) s.at(1, i) = i % 4 == 1 ? kLargest : -kLargest;
          s.at(2, i) = -test::kInf;  // a head that may reach nothing
        }
        CHECK(softmax_error(s, 1.0f) <= 1.0);
        Scores alone{1, n, std::vector<float>(n, -test::kInf)};
        for (const float share : reduce(ScoreRule::kSoftmaxSum, alone)) CHECK(share == 0.0f);
      }
    });
  }

  TEST_CASE("softmax_sum shows a score that is no number") {
    test::for_each_simd_target([] {
      for (const size_t n : kScoreLengths) {
        for (const float damaged : {kNan, test::kInf}) {
          Scores s = random_scores(2, n, 1.0f, 806);
          s.at(1, n / 2) = damaged;
          for (const float share : reduce(ScoreRule::kSoftmaxSum, s)) CHECK(std::isnan(share));
        }
        Scores all{1, n, std::vector<float>(n, kNan)};
        for (const float share : reduce(ScoreRule::kSoftmaxSum, all)) CHECK(std::isnan(share));
      }
    });
  }

  TEST_CASE("no candidates: nothing is written") {
    test::for_each_simd_target([] {
      for (const auto rule :
           {ScoreRule::kSum, ScoreRule::kMean, ScoreRule::kMax, ScoreRule::kSoftmaxSum})
        CHECK(reduce(rule, {4, 0, {}}).empty());
    });
  }
}
