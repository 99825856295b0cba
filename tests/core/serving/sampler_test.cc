// Sampler: greedy, filters, penalty, and drawn frequencies against probabilities worked out here.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/sampler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

using namespace kvasir;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

SamplerOptions plain(float temperature) {
  return {.temperature = temperature, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 7};
}

// How often each token is drawn in n draws.
std::vector<double> frequencies(const SamplerOptions& options, const std::vector<float>& logits,
                                int n = 20000) {
  Sampler sampler(options);
  std::vector<double> f(logits.size());
  for (int i = 0; i < n; ++i) f[sampler.sample(logits)] += 1.0 / n;
  return f;
}

std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> p;
  for (const double l : logits) p.push_back(std::exp(l));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// 20000 draws: five standard deviations of a frequency are below 0.018.
void check_close(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - expected[i]) < 0.018);
    if (expected[i] == 0) CHECK(got[i] == 0);
  }
}

}  // namespace

TEST_SUITE_BEGIN("core/model/sampler");

TEST_CASE("temperature 0 takes the best token, the lowest id among equals") {
  Sampler sampler(plain(0));
  CHECK(sampler.sample(std::vector<float>{1, 3, 3, 2}) == 1);
  CHECK(sampler.sample(std::vector<float>{5}) == 0);
  CHECK(sampler.sample(std::vector<float>{-kInf, -3, kInf, kInf}) == 2);
  CHECK(sampler.sample(std::vector<float>{kNan, -3, kNan}) == 1);
}

TEST_CASE("same seed same answer, other seed another") {
  const std::vector<float> logits(100, 0.0f);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<TokenId> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(sampler.sample(logits));
    return ids;
  };
  CHECK(draw(1) == draw(1));
  CHECK(draw(1) != draw(2));
}

TEST_CASE("without filters tokens come as often as softmax(logits / temperature) says") {
  const std::vector<float> logits = {0.5f, -1, 2, 0, 1.5f};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    std::vector<double> scaled;
    for (const float l : logits) scaled.push_back(static_cast<double>(l / temperature));
    check_close(frequencies(plain(temperature), logits), softmax(scaled));
  }
}

TEST_CASE("top-k keeps the k best, the lower id at a tie") {
  SamplerOptions options = plain(1);
  options.top_k = 2;
  auto p = softmax({2, 1});
  check_close(frequencies(options, {0, 2, -1, 1}), {0, p[0], 0, p[1]});
  check_close(frequencies(options, {1, 1, 1, 1}), {0.5, 0.5, 0, 0});
  options.top_k = 1;
  check_close(frequencies(options, {0, 2, 2, 1}), {0, 1, 0, 0});
  options.top_k = 99;
  check_close(frequencies(options, {0, 0}), {0.5, 0.5});
}

TEST_CASE("top-p keeps the fewest that reach it, one at least") {
  // probabilities 0.5 0.3 0.15 0.05
  const auto logit = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> logits = {logit(0.15), logit(0.5), logit(0.05), logit(0.3)};
  SamplerOptions options = plain(1);
  const double reached[] = {0.4, 0.79, 0.94, 0.96};
  const std::vector<double> expected[] = {{0, 1, 0, 0},
                                          {0, 0.5 / 0.8, 0, 0.3 / 0.8},
                                          {0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95},
                                          {0.15, 0.5, 0.05, 0.3}};
  for (int i = 0; i < 4; ++i) {
    options.top_p = static_cast<float>(reached[i]);
    check_close(frequencies(options, logits), expected[i]);
  }
  for (const float none : {0.0f, -1.0f}) {
    options.top_p = none;
    check_close(frequencies(options, logits, 100), expected[0]);
  }
}

TEST_CASE("the set of top-p is chosen before the temperature is applied") {
  const auto logit = [](double p) { return static_cast<float>(std::log(p)); };
  SamplerOptions options = plain(100);
  options.top_p = 0.79f;
  // After a temperature of 100 all four would be about equal and all would stay.
  check_close(frequencies(options, {logit(0.15), logit(0.5), logit(0.05), logit(0.3)}),
              {0, 0.5, 0, 0.5});
}

TEST_CASE("min-p keeps what is at least that share of the best") {
  const auto logit = [](double p) { return static_cast<float>(std::log(p)); };
  SamplerOptions options = plain(1);
  options.min_p = 0.4f;  // 0.5 * 0.4 = 0.2
  check_close(frequencies(options, {logit(0.15), logit(0.5), logit(0.05), logit(0.3)}),
              {0, 0.5 / 0.8, 0, 0.3 / 0.8});
  options.min_p = 2;  // nothing reaches it but the best stays
  check_close(frequencies(options, {0, 1}, 100), {0, 1});
}

TEST_CASE("the penalty divides positive and multiplies negative logits of recent tokens once") {
  SamplerOptions options = plain(0);
  options.repeat_penalty = 2;
  options.repeat_last_n = 2;
  Sampler sampler(options);
  const std::vector<float> logits = {4, 3, -1, -3};
  CHECK(sampler.sample(logits) == 0);
  sampler.accept(0);
  sampler.accept(0);  // twice is no more than once: 4 / 2 = 2
  CHECK(sampler.sample(std::vector<float>{4, 1.5f}) == 0);
  CHECK(sampler.sample(logits) == 1);
  sampler.accept(1);  // 4 / 2, 3 / 2
  CHECK(sampler.sample(logits) == 0);
  sampler.accept(3);  // the window holds 1 and 3: 4, 3 / 2
  CHECK(sampler.sample(logits) == 0);
  CHECK(sampler.sample(std::vector<float>{-9, -9, -5, -3}) == 2);  // -3 * 2 is below -5
  sampler.accept(12345);  // an id without a logit is no matter
  sampler.accept(-1);
  CHECK(sampler.sample(logits) == 0);
}

TEST_CASE("no window, no penalty") {
  SamplerOptions options = plain(0);
  options.repeat_penalty = 100;
  options.repeat_last_n = 0;
  Sampler sampler(options);
  sampler.accept(0);
  CHECK(sampler.sample(std::vector<float>{4, 3}) == 0);
}

TEST_CASE("logits that are not numbers are never drawn; none left gives the lowest id") {
  for (const uint32_t top_k : {0u, 2u}) {
    for (const float top_p : {1.0f, 0.9f}) {
      SamplerOptions options = plain(1);
      options.top_k = top_k;
      options.top_p = top_p;
      check_close(frequencies(options, {kNan, 0, -kInf, kNan, 0}), {0, 0.5, 0, 0, 0.5});
      check_close(frequencies(options, {kInf, 0, kInf}), {0.5, 0, 0.5});
      check_close(frequencies(options, {-kInf, kNan, -kInf}, 100), {1, 0, 0});
    }
  }
}

TEST_CASE("defaults do not change which token is best, nor draw the hopeless") {
  std::vector<float> logits(1000, -20.0f);
  logits[123] = 5;
  logits[321] = 4.9f;
  Sampler sampler({});
  for (int i = 0; i < 500; ++i) {
    const TokenId id = sampler.sample(logits);
    CHECK((id == 123 || id == 321));
  }
}

TEST_CASE("options that mean nothing are refused") {
  CHECK_THROWS_AS(Sampler({.temperature = kNan}), Error);
  CHECK_THROWS_AS(Sampler({.temperature = kInf}), Error);
  CHECK_THROWS_AS(Sampler({.top_p = kNan}), Error);
  CHECK_THROWS_AS(Sampler({.min_p = kNan}), Error);
  CHECK_THROWS_AS(Sampler({.repeat_penalty = 0}), Error);
  CHECK_THROWS_AS(Sampler({.repeat_penalty = kNan}), Error);
  CHECK_THROWS_AS(Sampler({}).sample({}), Error);
}

TEST_SUITE_END();
