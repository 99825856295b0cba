// What `kvasir bench recall` measures with, against sums and draws written here.
// SPDX-License-Identifier: Apache-2.0
#include "tools/kvasir/recall/recall_meter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/kvasir/recall/made_up_world.h"

namespace {

using namespace kvasir;
using namespace kvasir::tool;

RecallShape small_shape() {
  RecallShape s;
  s.context = 101;
  s.steps = 2;
  s.sink = 4;
  s.window = 8;
  s.n_layers = 2;
  s.n_q_heads = 4;
  s.n_kv_heads = 2;
  s.head_dim = 16;
  return s;
}

struct Made {
  explicit Made(const RecallShape& shape, uint32_t n_heaviest = 20,
                Planted planted = {.needles = 3})
      : pool(Topology::detect(), 1), world(shape, planted, 7), truth(world, n_heaviest, pool) {}
  ThreadPool pool;
  MadeUpWorld world;
  RecallTruth truth;
};

// Neighbours (2 d, 2 d + 1) turned by position * base^(-2 d / n).
std::vector<double> rotated(const float* x, uint32_t n, uint32_t position, double base) {
  std::vector<double> out(n);
  for (uint32_t d = 0; d < n / 2; ++d) {
    const double angle = position * std::pow(base, -2.0 * d / n);
    const double a = double{x[2 * d]}, b = double{x[2 * d + 1]};
    out[2 * d] = a * std::cos(angle) - b * std::sin(angle);
    out[2 * d + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
  return out;
}

// Relative, which doctest's Approx is not below 1.
bool near(double a, double b, double share) { return std::abs(a - b) <= share * std::abs(b); }

TEST_CASE("bench recall's truth is the attention of what the model is given, rotated") {
  const RecallShape s = small_shape();
  const Made made(s);
  const double base = double{made.world.geometry().rope.base};
  const uint32_t pos = s.context + 1;
  std::vector<float> q(s.n_q_heads * s.head_dim), k(s.n_kv_heads * s.head_dim), v(k.size());
  std::vector<float> query(q.size());
  made.world.project(1, static_cast<int32_t>(pos), query.data(), k.data(), v.data());
  for (uint32_t head = 0; head < s.n_q_heads; ++head) {
    const uint32_t kv_head = head / 2;
    const auto turned = rotated(query.data() + head * s.head_dim, s.head_dim, pos, base);
    std::vector<double> weight(pos + 1), o(s.head_dim);
    double sum = 0;
    for (uint32_t t = 0; t <= pos; ++t) {
      made.world.project(1, static_cast<int32_t>(t), q.data(), k.data(), v.data());
      const auto key = rotated(k.data() + kv_head * s.head_dim, s.head_dim, t, base);
      weight[t] =
          std::exp(std::inner_product(key.begin(), key.end(), turned.begin(), 0.0) / 4.0);  // √16
      sum += weight[t];
      for (uint32_t d = 0; d < s.head_dim; ++d)
        o[d] += weight[t] * double{v[kv_head * s.head_dim + d]};
    }
    for (uint32_t t = 0; t <= pos; ++t)
      CHECK(near(double{made.truth.mass(1, pos, head)[t]}, weight[t] / sum, 1e-4));
    for (uint32_t d = 0; d < s.head_dim; ++d)
      CHECK(made.truth.output(1, pos, head)[d] == doctest::Approx(o[d] / sum).epsilon(1e-5));
  }
}

TEST_CASE("bench recall's needles carry the mass that was asked for") {
  RecallShape s = small_shape();
  s.context = 2048;
  s.head_dim = 64;
  const Planted planted{.needles = 3, .drift = 0.3};
  const Made made(s, 20, planted);
  REQUIRE(made.world.needles().size() == planted.needles);
  double sum = 0;
  for (uint32_t head = 0; head < s.n_q_heads; ++head)
    for (const uint32_t t : made.world.needles()) {
      CHECK(t >= s.sink);
      CHECK(t < s.context - s.window);
      sum += double{made.truth.mass(1, s.context, head)[t]};
    }
  CHECK(sum / s.n_q_heads == doctest::Approx(planted.needle_mass).epsilon(0.2));
}

TEST_CASE("bench recall's rehearsed queries have the cosine that was asked for, and the length") {
  const RecallShape s = small_shape();
  for (const double cosine : {1.0, 0.95, 0.0}) {
    const Made made(s, 20, Planted{.rehearsal = cosine});
    std::vector<float> q(s.n_q_heads * s.head_dim), k(s.n_kv_heads * s.head_dim), v(k.size());
    std::vector<float> ahead(q.size()), again(q.size());
    made.world.project(1, 101, q.data(), k.data(), v.data());
    made.world.project(1, 101, ahead.data(), nullptr, nullptr);
    made.world.project(1, 101, again.data(), nullptr, nullptr);
    CHECK(ahead == again);
    for (uint32_t head = 0; head < s.n_q_heads; ++head) {
      double dot = 0, of_q = 0, of_ahead = 0;
      for (uint32_t d = head * s.head_dim; d < (head + 1) * s.head_dim; ++d) {
        dot += double{q[d]} * double{ahead[d]};
        of_q += double{q[d]} * double{q[d]};
        of_ahead += double{ahead[d]} * double{ahead[d]};
      }
      CHECK(dot / of_q == doctest::Approx(cosine).epsilon(1e-5));
      CHECK(of_ahead / of_q == doctest::Approx(1.0).epsilon(1e-5));
    }
  }
}

// Both steps of layer 1, with the given tokens for every kv head and the exact output.
RecallFigures measured(
    const Made& made, RecallMeter::Choice choice,
    const std::function<std::vector<uint32_t>(uint32_t pos, uint32_t head)>& set) {
  const RecallShape& s = made.world.shape();
  RecallMeter meter(made.world, made.truth, choice);
  for (uint32_t pos = s.context; pos < s.context + s.steps; ++pos) {
    std::vector<float> o;
    for (uint32_t head = 0; head < s.n_q_heads; ++head)
      for (const double x : made.truth.output(1, pos, head)) o.push_back(static_cast<float>(x));
    for (uint32_t head = 0; head < s.n_kv_heads; ++head) meter.attended(1, head, set(pos, head));
    meter.output(1, pos, o.data());
  }
  return meter.figures();
}

TEST_CASE("bench recall: all that is attended to captures everything") {
  const Made made(small_shape());
  const RecallFigures f = measured(made, {}, [](uint32_t pos, uint32_t) {
    std::vector<uint32_t> all(pos + 1);
    std::iota(all.begin(), all.end(), 0u);
    return all;
  });
  CHECK(f.attended == doctest::Approx(102.5));
  for (const double x : {f.captured, f.best, f.random, f.needles, f.top_k})
    CHECK(x == doctest::Approx(1.0).epsilon(1e-5));
  CHECK(f.random_deviation == doctest::Approx(0.0));
  CHECK(f.error < 1e-6);
}

TEST_CASE("bench recall's bounds: the best by sorting, chance by drawing") {
  const RecallShape s = small_shape();
  const Made made(s);
  constexpr uint32_t kUnits = 5;
  for (const uint32_t per : {1u, 4u})
    for (const RecallScope scope :
         {RecallScope::kSequence, RecallScope::kKvHead, RecallScope::kQHead}) {
      CAPTURE(per);
      CAPTURE(static_cast<int>(scope));
      std::mt19937 random(3);
      double best = 0, chance = 0, deviation = 0;
      size_t n_sets = 0;
      const auto forced = [&](uint32_t pos) {
        std::vector<uint32_t> out;
        for (uint32_t t = 0; t <= pos; ++t) {
          const uint32_t begin = t / per * per, end = std::min(begin + per, pos + 1);
          if (begin < s.sink || end > pos + 1 - s.window) out.push_back(t);
        }
        return out;
      };
      for (uint32_t pos = s.context; pos < s.context + s.steps; ++pos)
        for (uint32_t set = 0; set < (scope == RecallScope::kSequence ? 1 : s.n_kv_heads); ++set) {
          const uint32_t n_heads = scope == RecallScope::kSequence ? 4 : 2;
          const std::vector<uint32_t> in_any_case = forced(pos);
          std::vector<double> units((pos + per) / per);
          double base = 0;
          for (uint32_t head = set * n_heads; head < (set + 1) * n_heads; ++head)
            for (uint32_t t = 0; t <= pos; ++t) {
              const double x = double{made.truth.mass(1, pos, head)[t]} / n_heads;
              if (std::find(in_any_case.begin(), in_any_case.end(), t) != in_any_case.end())
                base += x;
              else
                units[t / per] += x;
            }
          std::erase(units, 0.0);
          std::sort(units.rbegin(), units.rend());
          best += base + std::accumulate(units.begin(), units.begin() + kUnits, 0.0);
          double sum = 0, squares = 0;
          constexpr int kDraws = 20000;
          for (int draw = 0; draw < kDraws; ++draw) {
            std::shuffle(units.begin(), units.end(), random);
            const double x = base + std::accumulate(units.begin(), units.begin() + kUnits, 0.0);
            sum += x;
            squares += x * x;
          }
          chance += sum / kDraws;
          deviation += std::sqrt(squares / kDraws - sum / kDraws * (sum / kDraws));
          ++n_sets;
        }
      const auto n = static_cast<double>(n_sets);
      const RecallFigures f = measured(made, {per, scope}, [&](uint32_t pos, uint32_t) {
        std::vector<uint32_t> out = forced(pos);
        for (uint32_t t = 16; t < 16 + kUnits * per; ++t) out.push_back(t);
        std::sort(out.begin(), out.end());
        return out;
      });
      CHECK(f.best == doctest::Approx(best / n).epsilon(1e-9));
      CHECK(near(f.random, chance / n, 0.01));
      CHECK(near(f.random_deviation, deviation / n, 0.02));
      CHECK(f.captured < f.best);
    }
}

}  // namespace
