// Twilight (arXiv:2502.02770): of some candidates each query head keeps the fewest tokens whose
// share of its attention, estimated from keys of four bits, reaches p. Single precision may round a
// key's element, and order tokens, differently: the oracle says which tokens are kept in any case,
// and which may be.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/oracles/primitives.h"

namespace kvasir::oracle::twilight {

// A logit as far as it is known. Exact: of a key of zeros, and equal to its like.
struct Logit {
  double low = 0, high = 0;
  bool exact = false;
};

// scale * q.k', k' = k rounded to 16 equal steps from its smallest to its largest element.
inline Logit estimate(const Vector& q, const Vector& k, double scale) {
  const double least = *std::min_element(k.begin(), k.end());
  const double step = (*std::max_element(k.begin(), k.end()) - least) / 15.0;
  if (step == 0) {
    double logit = 0;
    for (const double x : q) logit += scale * x * least;
    return {logit, logit, least == 0};
  }
  constexpr double kSlack = 2e-5;  // of the logit, and of a step
  Logit out{-kSlack, kSlack, false};
  for (size_t d = 0; d < k.size(); ++d) {
    const double at = (k[d] - least) / step, down = std::floor(at);
    const double one = scale * q[d] * (least + step * down);
    const double other = scale * q[d] * (least + step * (down + 1));
    const bool may_fall = at - down<0.5 + kSlack, may_rise = at - down> 0.5 - kSlack;
    out.low += !may_rise ? one : !may_fall ? other : std::min(one, other);
    out.high += !may_rise ? one : !may_fall ? other : std::max(one, other);
  }
  return out;
}

struct Kept {
  Indices sure, possible;
};

// Positions in `logit` that one query head keeps.
inline Kept smallest_set(const std::vector<Logit>& logit, double p) {
  double top = -kInfinity;
  for (const Logit& x : logit) top = std::max(top, x.high);
  // At most, and at least, this share of the mass ranks before each token.
  const auto share_before = [&](bool at_most) {
    const auto heavy = [&](uint32_t t) {
      return std::exp((at_most ? logit[t].high : logit[t].low) - top);
    };
    const auto light = [&](uint32_t t) {
      return std::exp((at_most ? logit[t].low : logit[t].high) - top);
    };
    // Others stand where they reach highest (lowest), the token itself where it is lowest
    // (highest).
    Indices order = range(0, static_cast<uint32_t>(logit.size()));
    const auto place = [&](uint32_t t) { return at_most ? logit[t].high : logit[t].low; };
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return place(a) > place(b); });
    Vector sum_before{0}, light_before{0};
    for (const uint32_t t : order) {
      sum_before.push_back(sum_before.back() + heavy(t));
      light_before.push_back(light_before.back() + light(t));
    }
    uint32_t n_exact = 0, exact_so_far = 0;
    for (const Logit& x : logit) n_exact += x.exact ? 1 : 0;
    Vector out;
    for (uint32_t t = 0; t < logit.size(); ++t) {
      const double own = at_most ? logit[t].low : logit[t].high;
      const auto end = std::partition_point(order.begin(), order.end(), [&](uint32_t u) {
        return at_most ? place(u) >= own : place(u) > own;
      });
      const auto n = static_cast<size_t>(end - order.begin());
      double before = sum_before[n], behind = light_before.back() - light_before[n];
      if (at_most) before -= heavy(t), behind += light(t);  // itself
      if (logit[t].exact) {  // of equal ones the lower token ranks first
        const double later = (n_exact - exact_so_far - 1) * heavy(t);
        if (at_most) before -= later, behind += later;
        if (!at_most) before += exact_so_far * heavy(t), behind -= exact_so_far * heavy(t);
        ++exact_so_far;
      }
      out.push_back(before / (before + behind));
    }
    return out;
  };
  constexpr double kSlack = 3e-6;  // single precision sums
  Kept out;
  const Vector most = share_before(true), least = share_before(false);
  for (uint32_t t = 0; t < logit.size(); ++t) {
    if (most[t] < p - kSlack) out.sure.push_back(t);
    if (least[t] < p + kSlack) out.possible.push_back(t);
  }
  return out;
}

// Share of all attention that each position has at least, and at most.
struct Shares {
  Vector low, high;
};
inline Shares shares(const std::vector<Logit>& logit) {
  Vector low, high;
  for (const Logit& x : logit) {
    low.push_back(x.low);
    high.push_back(x.high);
  }
  const double least = log_sum_exp(low), most = log_sum_exp(high);
  Shares out;
  for (const Logit& x : logit) {
    out.low.push_back(std::exp(x.low - most));
    out.high.push_back(std::exp(x.high - least));
  }
  return out;
}

}  // namespace kvasir::oracle::twilight
