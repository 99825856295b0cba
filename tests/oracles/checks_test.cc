// Properties the methods must have, shown on the oracles themselves over random cases.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/oracles/exact.h"
#include "tests/oracles/h2o.h"
#include "tests/oracles/infinigen.h"
#include "tests/oracles/magicpig.h"
#include "tests/oracles/random.h"
#include "tests/oracles/representative.h"
#include "tests/oracles/snapkv.h"
#include "tests/support/larger_or_nan.h"

namespace {

using namespace kvasir::oracle;

double distance(const Vector& a, const Vector& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = kvasir::test::larger_or_nan(most, std::abs(a[i] - b[i]));
  return most;
}

// An orthogonal matrix: Gram-Schmidt on random vectors.
Vectors orthogonal(Random& random, size_t n) {
  Vectors out;
  while (out.size() < n) {
    Vector x = random.normals(n);
    for (const Vector& y : out) {
      const double along = dot(x, y);
      for (size_t d = 0; d < n; ++d) x[d] -= along * y[d];
    }
    const double norm = std::sqrt(dot(x, x));
    for (double& value : x) value /= norm;
    out.push_back(x);
  }
  return out;
}

TEST_CASE("any partition of the tokens reproduces dense attention") {
  Random random(1);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const uint32_t n = 1 + random.below(60);
    const Vectors k = random.vectors(n, 8), v = random.vectors(n, 5);
    const Vector q = random.normals(8, 2.0);
    const Partial dense = attend(logits(q, k, range(0, n), 0.5), v, 5);
    std::vector<Partial> parts(4, {Vector(5, 0.0), -kInfinity});
    for (uint32_t t = 0; t < n; ++t) {
      Partial& into = parts[random.below(4)];
      into = merge(into, attend(logits(q, k, {t}, 0.5), {v[t]}, 5));
    }
    Partial all = parts[0];
    for (size_t i = 1; i < 4; ++i) all = merge(all, parts[i]);
    CHECK(distance(all.o, dense.o) < 1e-12);
    CHECK(std::abs(all.lse - dense.lse) < 1e-12);
  }
}

TEST_CASE("the bound is never below a key's product; the mean lies among them") {
  Random random(2);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Vectors k = random.vectors(1 + random.below(16), 8);
    const Vector q = random.normals(8);
    double high = -kInfinity, low = kInfinity;
    for (const Vector& key : k) {
      high = std::max(high, dot(q, key));
      low = std::min(low, dot(q, key));
    }
    CHECK(representative::bound(q, k) >= high - 1e-12);
    const double mean = dot(q, representative::mean(k));
    CHECK(mean <= high + 1e-12);
    CHECK(mean >= low - 1e-12);
  }
}

TEST_CASE("skewing by an orthogonal matrix changes no logit") {
  Random random(3);
  const Vectors a = orthogonal(random, 16), q = random.vectors(20, 16), k = random.vectors(20, 16);
  for (const Vector& x : q)
    for (const Vector& y : k)
      CHECK(infinigen::partial_logit(x, y, a, range(0, 16), 1.0) ==
            doctest::Approx(dot(x, y)).epsilon(1e-9));
}

TEST_CASE("InfiniGen with the true query and all columns is exact top-n'") {
  Random random(4);
  for (int repeat = 0; repeat < 30; ++repeat) {
    const uint32_t n = 2 + random.below(40);
    const std::vector<Vectors> k = {random.vectors(n, 8), random.vectors(n, 8)};
    const Vectors q = random.vectors(4, 8, 2.0);
    infinigen::Rehearsal of;
    of.alpha = 2.0;
    of.cap = n;
    for (uint32_t g = 0; g < 2; ++g) {
      Vectors members;
      for (uint32_t h = 2 * g; h < 2 * g + 2; ++h) {
        members.emplace_back();
        for (uint32_t t = 0; t < n; ++t)
          members.back().push_back(infinigen::partial_logit(q[h], k[g][t], {}, range(0, 8), 0.35));
      }
      of.logit.push_back(reduce(members, Reduce::kMax));
    }
    const uint64_t count = infinigen::common_count(of);
    CHECK(count >= 1);
    for (uint32_t g = 0; g < 2; ++g) {
      Vector best(n, -kInfinity);
      for (uint32_t h = 2 * g; h < 2 * g + 2; ++h)
        for (uint32_t t = 0; t < n; ++t) best[t] = std::max(best[t], 0.35 * dot(q[h], k[g][t]));
      const Choice choice = infinigen::choose(of, range(0, n), g, count);
      CHECK(judge({range(0, n), best, count, 0}, choice.chosen(), 1e-12).admissible);
    }
    of.alpha = kInfinity;
    CHECK(infinigen::common_count(of) == n);  // with cap = T: everything
  }
}

TEST_CASE("H2O: masses sum to the number of queries until something is dropped") {
  Random random(5);
  const uint32_t n = 50;
  const std::vector<Vectors> k = {random.vectors(n, 8)};
  h2o::Accumulator mass;
  for (uint32_t t = 0; t < n; ++t) {
    const Indices seen = range(0, t + 1);
    Vectors p;
    for (int head = 0; head < 4; ++head)
      p.push_back(softmax(logits(random.normals(8), k[0], seen, 1.0)));
    mass.add(t, seen, p);
    CHECK(mass.total() == doctest::Approx(t + 1));
  }
  // A budget that covers everything keeps everything.
  const Choice all = h2o::keep({mass}, range(0, n), n, 10, 40, false);
  CHECK(all.chosen() == range(0, 40));
}

TEST_CASE("H2O: dropping tokens and masking them give the same output; no token goes twice") {
  Random random(6);
  const uint32_t prompt = 20, recent = 4;
  const uint64_t heavy = 6;
  const Vectors k = random.vectors(60, 8), v = random.vectors(60, 3);
  h2o::Accumulator mass;
  Indices alive = range(0, prompt), lost;
  for (uint32_t t = 0; t < 60; ++t) {
    const Vector q = random.normals(8);
    if (t < prompt) {
      mass.add(t, range(0, t + 1), {softmax(logits(q, k, range(0, t + 1), 1.0))});
      if (t + 1 < prompt) continue;
    } else {
      alive.push_back(t);
      const Vector logit = logits(q, k, alive, 1.0);
      Vectors kept_v;
      for (const uint32_t a : alive) kept_v.push_back(v[a]);
      const Partial dropped = attend(logit, kept_v, 3);
      Vector masked = logits(q, k, range(0, t + 1), 1.0);
      for (uint32_t a = 0; a <= t; ++a)
        if (!holds(alive, a)) masked[a] = -kInfinity;
      CHECK(distance(dropped.o, attend(masked, Vectors(v.begin(), v.begin() + t + 1), 3).o) <
            1e-12);
      mass.add(t, alive, {softmax(logit)});
    }
    const Choice keep = h2o::keep({mass}, alive, t + 1, recent, heavy, false);
    for (const uint32_t gone : without(keep.candidates, keep.chosen())) {
      CHECK_FALSE(std::count(lost.begin(), lost.end(), gone));
      lost.push_back(gone);
    }
    alive = unite(keep.chosen(), range(t + 1 - recent, t + 1));
    CHECK(alive.size() == heavy + recent);
  }
  CHECK(lost.size() == 60 - heavy - recent);
}

TEST_CASE("MagicPIG: the sampled frequency of each key is its inclusion probability") {
  Random random(7);
  const Vector q = random.normals(16);
  Vectors k;
  for (int i = 0; i < 6; ++i) {  // from parallel to orthogonal
    Vector key = random.normals(16);
    for (size_t d = 0; d < 16; ++d) key[d] += (5.0 - i) * 0.6 * q[d];
    k.push_back(key);
  }
  const int draws = 2000;
  Vector drawn(k.size(), 0.0);
  for (int draw = 0; draw < draws; ++draw) {
    const magicpig::Hash hash{4, 8, random.vectors(32, 16)};
    for (const uint32_t t : magicpig::sampled(hash, q, k, range(0, 6))) drawn[t] += 1.0 / draws;
  }
  for (size_t t = 0; t < k.size(); ++t) {
    const double u = magicpig::inclusion(magicpig::cosine(q, k[t]), 4, 8);
    CHECK(std::abs(drawn[t] - u) < 4.5 * std::sqrt(u * (1 - u) / draws) + 1e-9);
  }
}

TEST_CASE("MagicPIG: the mean over many seeds approaches full attention; K = 0 is dense") {
  Random random(8);
  const uint32_t n = 64;
  const Vectors k = random.vectors(n, 16), v = random.vectors(n, 4);
  const Vector q = random.normals(16, 1.5);
  const Vector logit = logits(q, k, range(0, n), 0.25);
  const Partial dense = attend(logit, v, 4);
  const auto estimate = [&](uint32_t bits, uint32_t tables) {
    const magicpig::Hash hash{bits, tables, random.vectors(size_t{bits} * tables, 16)};
    Vector corrected;
    Vectors values;
    for (const uint32_t t : magicpig::sampled(hash, q, k, range(0, n))) {
      const double u = magicpig::inclusion(magicpig::cosine(q, k[t]), bits, tables);
      corrected.push_back(logit[t] + magicpig::log_weight(u));
      values.push_back(v[t]);
    }
    return attend(corrected, values, 4);
  };
  CHECK(distance(estimate(0, 5).o, dense.o) < 1e-12);
  double sum = 0, weight = 0;
  Vector mean(4, 0.0);
  for (int draw = 0; draw < 600; ++draw) {
    const Partial one = estimate(5, 24);
    sum += std::exp(one.lse) / 600;
    weight += std::exp(one.lse);
    for (size_t d = 0; d < 4; ++d) mean[d] += std::exp(one.lse) * one.o[d];
  }
  for (double& x : mean) x /= weight;
  CHECK(distance(mean, dense.o) < 0.05);
  CHECK(sum == doctest::Approx(std::exp(dense.lse)).epsilon(0.05));  // the mass is unbiased
}

TEST_CASE("a common shift of all keys leaves attention unchanged") {
  Random random(9);
  const Vectors k = random.vectors(30, 8), v = random.vectors(30, 3);
  const Vector q = random.normals(8), mean = magicpig::mean_key(k, range(0, 20));
  Vectors centred;
  for (const Vector& key : k) centred.push_back(magicpig::minus(key, mean));
  CHECK(distance(attend(logits(q, k, range(0, 30), 1.0), v, 3).o,
                 attend(logits(q, centred, range(0, 30), 1.0), v, 3).o) < 1e-12);
}

TEST_CASE("pooling: mean before or after a group's mean is the same, maximum is not") {
  Random random(10);
  const Heads heads{2, 1, 1};
  const Vectors votes = {random.normals(30), random.normals(30)};
  snapkv::Options before, after;
  after.pool_first = true;
  const Indices all = range(0, 30);
  CHECK(distance(snapkv::choose(heads, before, votes, 0, all, 5).score,
                 snapkv::choose(heads, after, votes, 0, all, 5).score) < 1e-12);
  before.pooling = after.pooling = snapkv::Pooling::kMax;
  CHECK(distance(snapkv::choose(heads, before, votes, 0, all, 5).score,
                 snapkv::choose(heads, after, votes, 0, all, 5).score) > 1e-3);
}

TEST_CASE("no set of the same size holds more mass than the exact one") {
  Random random(11);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const uint32_t n = 3 + random.below(20);
    const Vector p = exact::mass(random.normals(8), random.vectors(n, 8), range(0, n), 1.0);
    const auto total = [&](const Indices& set) {
      double sum = 0;
      for (const uint32_t t : set) sum += p[t];
      return sum;
    };
    const uint32_t size = 1 + random.below(n);
    const double best = total(exact::best_tokens(range(0, n), {p}, range(0, n), size).chosen());
    for (int other = 0; other < 20; ++other)
      CHECK(total(top_k(random.normals(n), size)) <= best + 1e-12);
    const Indices enough = top_p(p, 0.8);
    CHECK(total(enough) >= 0.8 - 1e-12);
    CHECK(total(top_k(p, enough.size() - 1)) < 0.8);
  }
}

}  // namespace
