// The sampler chain. Filters keep the candidates in order of falling logit once one of them needs
// it; shares are kept as exp(logit - max), in double.
// SPDX-License-Identifier: Apache-2.0
#include "core/serving/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace kvasir {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit;
  TokenId id;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// exp((logit - max) / temperature). Equal to max is 1 even when both are infinite; -inf is 0.
double weight(float logit, float max, double temperature) {
  if (logit == max) return 1.0;
  if (logit == kMinusInfinity) return 0.0;
  return std::exp((static_cast<double>(logit) - static_cast<double>(max)) / temperature);
}

float max_logit(const std::vector<Candidate>& candidates) {
  return std::min_element(candidates.begin(), candidates.end(), better)->logit;
}

// Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1; negative logits are multiplied, so that
// the penalty always lowers them.
void penalise(std::vector<Candidate>& candidates, std::vector<TokenId> recent, float penalty) {
  std::sort(recent.begin(), recent.end());
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const TokenId id : recent) {
    if (id < 0 || static_cast<size_t>(id) >= candidates.size()) continue;
    float& logit = candidates[id].logit;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void keep_top_k(std::vector<Candidate>& candidates, size_t k) {
  if (k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k),
                     candidates.end(), better);
    candidates.resize(k);
    std::sort(candidates.begin(), candidates.end(), better);  // the library's order is its own
  }
}

// top-p (Holtzman et al. 2019, arXiv:1904.09751): the fewest best candidates that together reach
// probability top_p. min-p (arXiv:2407.01082): those at least min_p times as likely as the best.
// Both keep the best ones, so one walk down from the best ends where the first of them says. A heap
// spares sorting the vocabulary for the few that stay.
void keep_probable(std::vector<Candidate>& candidates, float top_p, float min_p) {
  const float max = max_logit(candidates);
  double total = 0;
  for (const Candidate& c : candidates) total += weight(c.logit, max, 1.0);
  const double enough =
      top_p < 1 ? static_cast<double>(top_p) * total : std::numeric_limits<double>::infinity();
  const auto worse = [](const Candidate& a, const Candidate& b) { return better(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), worse);
  std::vector<Candidate> kept;
  double sum = 0;
  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), worse);
    const Candidate c = candidates.back();
    candidates.pop_back();
    const double w = weight(c.logit, max, 1.0);
    if (!kept.empty() && w < static_cast<double>(min_p)) break;
    kept.push_back(c);
    sum += w;
    if (sum >= enough) break;
  }
  candidates = std::move(kept);
}

// The candidate in whose share of the probability `u` from [0, 1) falls.
TokenId pick(const std::vector<Candidate>& candidates, double temperature, double u) {
  const float max = max_logit(candidates);
  double total = 0;
  for (const Candidate& c : candidates) total += weight(c.logit, max, temperature);
  double left = u * total;
  TokenId last = kNoToken;  // rounding may leave a rest after all shares
  for (const Candidate& c : candidates) {
    const double w = weight(c.logit, max, temperature);
    if (w == 0) continue;
    last = c.id;
    left -= w;
    if (left < 0) break;
  }
  return last;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), rng_(options.seed) {
  const auto refuse = [](const char* what) { throw input_error(std::string("sampler: ") + what); };
  if (!std::isfinite(options.temperature)) refuse("temperature must be a number; 0 is greedy");
  if (std::isnan(options.top_p)) refuse("top_p must be a number; 1 turns it off");
  if (std::isnan(options.min_p)) refuse("min_p must be a number; 0 turns it off");
  if (!(options.repeat_penalty > 0) || !std::isfinite(options.repeat_penalty)) {
    refuse("repeat_penalty must be above 0; 1 turns it off");
  }
}

TokenId Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorKind::kInternal, "sampler: no logits to sample from");
  std::vector<Candidate> candidates(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    candidates[id] = {std::isnan(logit) ? kMinusInfinity : logit, static_cast<TokenId>(id)};
  }
  if (options_.repeat_penalty != 1) penalise(candidates, recent_, options_.repeat_penalty);

  const auto best = std::min_element(candidates.begin(), candidates.end(), better);
  // With every logit -inf no token is better than another; the lowest id keeps it repeatable.
  if (options_.temperature <= 0 || best->logit == kMinusInfinity) return best->id;
  if (options_.top_k > 0) keep_top_k(candidates, options_.top_k);
  if (options_.top_p < 1 || options_.min_p > 0) {
    keep_probable(candidates, options_.top_p, options_.min_p);
  }
  // 53 random bits: std::uniform_real_distribution may differ between standard libraries.
  const double u = static_cast<double>(rng_() >> 11) * 0x1p-53;
  return pick(candidates, options_.temperature, u);
}

void Sampler::accept(TokenId token) {
  if (options_.repeat_last_n == 0) return;
  if (recent_.size() < options_.repeat_last_n) {
    recent_.push_back(token);
  } else {
    recent_[oldest_] = token;
    oldest_ = (oldest_ + 1) % recent_.size();
  }
}

}  // namespace kvasir
