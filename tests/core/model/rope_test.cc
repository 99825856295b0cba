// Rotations against their definition in long double, at positions up to two million.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "core/error.h"
#include "core/model/layers/rope.h"
#include "tests/support/larger_or_nan.h"

namespace {
using namespace kvasir;

std::vector<float> random_rows(size_t n) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> rows(n);
  for (float& value : rows) value = uniform(random);
  return rows;
}

// One row rotated by `angle(i)` per pair, by the definition.
template <class Angle>
std::vector<double> rotated(const RopeConfig& c, std::span<const float> x, const Angle& angle,
                            double magnitude = 1.0) {
  std::vector<double> y(x.begin(), x.end());
  for (size_t i = 0; i < c.n_dims / 2; ++i) {
    const bool interleaved = c.pairing == RopePairing::kInterleaved;
    const size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + c.n_dims / 2;
    const auto cosine = static_cast<double>(std::cos(angle(i))) * magnitude;
    const auto sine = static_cast<double>(std::sin(angle(i))) * magnitude;
    y[a] = double{x[a]} * cosine - double{x[b]} * sine;
    y[b] = double{x[a]} * sine + double{x[b]} * cosine;
  }
  return y;
}

template <class T>
double largest_difference(std::span<const float> a, const std::vector<T>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst =
        test::larger_or_nan(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

long double frequency(const RopeConfig& c, size_t i) {
  return std::pow(static_cast<long double>(c.base), -2.0L * static_cast<long double>(i) / c.n_dims);
}

std::vector<float> apply(const RopeTable& table, std::vector<float> x, uint32_t pos,
                         uint64_t kv_len = 0) {
  const auto width = static_cast<uint32_t>(x.size());
  table.apply(x.data(), 1, 1, width, std::vector<uint32_t>{pos}, kv_len);
  return x;
}

std::vector<float> apply(const RopeConfig& c, std::vector<float> x, uint32_t pos,
                         uint64_t kv_len = 0) {
  return apply(RopeTable(c, 1 << 21), std::move(x), pos, kv_len);
}

}  // namespace

TEST_SUITE_BEGIN("core/model/rope");

TEST_CASE("both pairings rotate by pos * base^(-2i/n), to f32 rounding at any position") {
  for (const auto pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit}) {
    for (const uint32_t n_dims : {2u, 6u, 16u, 64u, 80u, 128u, 256u}) {
      const RopeConfig c{.pairing = pairing, .n_dims = n_dims};
      const RopeTable table(c, 1 << 21), short_table(c, 100);
      const auto x = random_rows(n_dims + 3);  // the last three are not rotated
      for (const uint32_t pos :
           {0u, 1u, 2047u, 2048u, 40961u, 1048575u, 1999999u, 2097151u, 5000000u}) {
        CAPTURE(n_dims);
        CAPTURE(pos);
        const auto angle = [&](size_t i) { return pos * frequency(c, i); };
        CHECK(largest_difference(apply(table, x, pos), rotated(c, x, angle)) < 3e-7);
        CHECK(largest_difference(apply(short_table, x, pos), rotated(c, x, angle)) < 3e-7);
      }
    }
  }
}

// Of a pair (1, 0) that turns, the angle's cosine and sine are what is left.
TEST_CASE("angles are those that rows turn by, whatever the scaling") {
  const RopeConfig kinds[] = {
      {.n_dims = 12},
      {.pairing = RopePairing::kHalfSplit,
       .n_dims = 12,
       .scaling = RopeScaling::kLinear,
       .factor = 4},
      {.n_dims = 12, .scaling = RopeScaling::kDynamicNtk, .factor = 2, .original_context = 1000},
      {.n_dims = 12, .scaling = RopeScaling::kYarn, .factor = 8, .original_context = 1000},
      {.n_dims = 12, .scaling = RopeScaling::kLlama3, .factor = 8, .original_context = 1000},
      {.n_dims = 12, .freq_factors = {1, 2, 3, 4, 5, 6}}};
  const std::vector<uint32_t> pos = {0, 5, 5, 70000, 3000000};
  for (const RopeConfig& c : kinds) {
    const RopeTable table(c, 1 << 20);
    CHECK(table.n_pairs() == 6);
    CHECK(table.pairing() == c.pairing);
    for (const uint64_t kv_len : {uint64_t{900}, uint64_t{4000}}) {
      CHECK(table.turns_by_length(kv_len) ==
            (c.scaling == RopeScaling::kDynamicNtk && kv_len == 4000));
      std::vector<float> cos(pos.size() * 6), sin(cos.size()), x(pos.size() * 12, 0.0f);
      table.angles(pos, kv_len, cos.data(), sin.data());
      const bool interleaved = c.pairing == RopePairing::kInterleaved;
      const auto first = [&](size_t t, size_t i) { return 12 * t + (interleaved ? 2 * i : i); };
      for (size_t t = 0; t < pos.size(); ++t)
        for (size_t i = 0; i < 6; ++i) x[first(t, i)] = 1.0f;
      table.apply(x.data(), static_cast<uint32_t>(pos.size()), 1, 12, pos, kv_len);
      for (size_t t = 0; t < pos.size(); ++t)
        for (size_t i = 0; i < 6; ++i) {
          CHECK(cos[6 * t + i] == x[first(t, i)]);
          CHECK(sin[6 * t + i] == x[first(t, i) + (interleaved ? 1 : 6)]);
        }
    }
  }
}

TEST_CASE("rows of many tokens and heads are rotated each by its token's position") {
  const RopeConfig c{.n_dims = 8};
  const RopeTable table(c, 4096);
  const std::vector<uint32_t> pos = {7, 7, 0, 3000, 12};
  const auto x = random_rows(5 * 3 * 8);
  auto all = x;
  table.apply(all.data(), 5, 3, 8, pos, 0);
  for (size_t row = 0; row < 15; ++row) {
    std::vector<float> one(x.begin() + row * 8, x.begin() + (row + 1) * 8);
    one = apply(c, one, pos[row / 3]);
    CHECK(std::equal(one.begin(), one.end(), all.begin() + row * 8));
  }
}

TEST_CASE("workers that share the tokens of a large call change no bit") {
  constexpr uint32_t kTokens = 301, kHeads = 5, kDim = 64;
  const auto x = random_rows(size_t{kTokens} * kHeads * kDim);
  std::vector<uint32_t> pos(kTokens);
  for (uint32_t token = 0; token < kTokens; ++token) pos[token] = token / 3 * 977;
  for (const auto pairing : {RopePairing::kInterleaved, RopePairing::kHalfSplit}) {
    const RopeConfig c{.pairing = pairing,
                       .n_dims = 62,  // no multiple of any vector, the last two are not rotated
                       .scaling = RopeScaling::kDynamicNtk,
                       .factor = 2.0f,
                       .original_context = 1000};
    auto alone = x;
    const RopeTable table(c, 4096);
    for (uint32_t token = 0; token < kTokens; ++token) {
      float* of_token = alone.data() + size_t{token} * kHeads * kDim;
      table.apply(of_token, 1, kHeads, kDim, {&pos[token], 1}, 9000);
    }
    for (const uint32_t n_workers : {1u, 2u, 3u}) {
      CAPTURE(n_workers);
      ThreadPool pool(Topology::detect(), n_workers, false);
      auto shared = x;
      RopeTable(c, 4096, &pool).apply(shared.data(), kTokens, kHeads, kDim, pos, 9000);
      CHECK(shared == alone);
    }
  }
}

TEST_CASE("shifting a rotated row gives the row rotated to the new position") {
  for (const auto scaling : {RopeScaling::kNone, RopeScaling::kYarn, RopeScaling::kLinear}) {
    const RopeConfig c{.pairing = RopePairing::kHalfSplit,
                       .n_dims = 64,
                       .scaling = scaling,
                       .factor = 4.0f,
                       .original_context = 4096};
    const RopeTable table(c, 1 << 20);
    const auto x = random_rows(64);
    for (const auto& [from, to] : {std::pair{900000u, 5u}, {5u, 900000u}, {77u, 77u}}) {
      auto moved = apply(table, x, from);
      const std::vector<int32_t> delta = {static_cast<int32_t>(to) - static_cast<int32_t>(from)};
      table.shift(moved.data(), 1, 1, 64, delta, 0);
      CHECK(largest_difference(moved, apply(table, x, to)) < 1e-6);
    }
  }
}

TEST_CASE("linear scaling divides positions by the factor") {
  const RopeConfig c{.n_dims = 32, .scaling = RopeScaling::kLinear, .factor = 8.0f};
  const auto x = random_rows(32);
  const RopeConfig plain{.n_dims = 32};
  CHECK(largest_difference(apply(c, x, 80000), apply(plain, x, 10000)) < 1e-6);
}

TEST_CASE("dynamic NTK changes nothing up to the original length and stretches the base beyond") {
  const RopeConfig c{
      .n_dims = 32, .scaling = RopeScaling::kDynamicNtk, .factor = 2.0f, .original_context = 1000};
  RopeConfig plain{.n_dims = 32};
  const auto x = random_rows(32);
  CHECK(apply(c, x, 999, 1000) == apply(plain, x, 999));
  plain.base = static_cast<float>(10000.0 * std::pow(2.0 * 3000 / 1000 - 1.0, 32.0 / 30.0));
  CHECK(largest_difference(apply(c, x, 2999, 3000), apply(plain, x, 2999)) < 2e-4);  // f32 base
}

// arXiv:2309.00071, section 3.2: dimensions that turn more than beta_fast times over the original
// context are kept, those below beta_slow are slowed by the factor.
TEST_CASE("YaRN keeps fast dimensions, interpolates slow ones and scales the magnitude") {
  const RopeConfig c{.n_dims = 128,
                     .scaling = RopeScaling::kYarn,
                     .factor = 16.0f,
                     .original_context = 4096,
                     .attn_factor = 0.5f};
  const double magnitude = 0.5 * (0.1 * std::log(16.0) + 1.0);
  const auto x = random_rows(128);
  const auto got = apply(c, x, 50000);
  const auto pair_of = [&](double turns) {
    return 128 * std::log(4096 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  const auto fast = rotated(
      c, x, [&](size_t i) { return 50000 * frequency(c, i); }, magnitude);
  const auto slow = rotated(
      c, x, [&](size_t i) { return 3125 * frequency(c, i); }, magnitude);
  for (size_t i = 0; i < 64; ++i) {
    CAPTURE(i);
    const bool is_fast = std::abs(double{got[2 * i]} - fast[2 * i]) < 3e-7;
    const bool is_slow = std::abs(double{got[2 * i]} - slow[2 * i]) < 3e-7;
    CHECK(is_fast == (static_cast<double>(i) <= std::floor(pair_of(32))));
    CHECK(is_slow == (static_cast<double>(i) >= std::ceil(pair_of(1))));
  }
}

TEST_CASE("the Llama 3 rule and a tensor of divisors that says the same give the same rotation") {
  RopeConfig rule{.n_dims = 128,
                  .base = 500000.0f,
                  .scaling = RopeScaling::kLlama3,
                  .factor = 8.0f,
                  .original_context = 8192};
  RopeConfig divisors{.n_dims = 128, .base = 500000.0f};
  for (size_t i = 0; i < 64; ++i) {
    const double wave = 2 * std::numbers::pi / static_cast<double>(frequency(divisors, i));
    double divisor = 1.0;
    if (wave > 8192.0 / 1.0) {
      divisor = 8.0;
    } else if (wave > 8192.0 / 4.0) {
      const double smooth = (8192.0 / wave - 1.0) / (4.0 - 1.0);
      divisor = 1.0 / ((1.0 - smooth) / 8.0 + smooth);
    }
    divisors.freq_factors.push_back(static_cast<float>(divisor));
  }
  const auto x = random_rows(128);
  // Divisors are f32: off by 6e-8 of the angle, here up to 60 radians where they are not 1.
  CHECK(largest_difference(apply(rule, x, 120000), apply(divisors, x, 120000)) < 1e-5);
}

TEST_CASE("positions and widths that do not fit are refused") {
  const RopeTable table(RopeConfig{.n_dims = 8}, 100);
  std::vector<float> x(16);
  const std::vector<uint32_t> one = {1};
  CHECK_THROWS_AS(table.apply(x.data(), 2, 1, 8, one, 0), Error);
  CHECK_THROWS_AS(table.apply(x.data(), 1, 1, 6, one, 0), Error);
  CHECK_THROWS_AS(RopeTable(RopeConfig{.n_dims = 7}, 100), Error);
  CHECK_THROWS_AS(RopeTable(RopeConfig{.n_dims = 4096}, 100), Error);
}
