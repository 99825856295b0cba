// MagicPIG in the runtime against its oracle. Which tokens are drawn is the planes' business; with
// which probability and weight is not.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/magicpig.h"

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

struct Tally {
  double drawn = 0, expected = 0;  // tokens of all heads and steps
  double square = 0;               // over cases: (drawn - expected)^2
  double worst_weight = 0;
  uint64_t weights = 0;
};

struct Sampler : Follower {
  Case of;
  uint32_t bits, tables;
  Tally* tally;
  std::vector<Rows> mean;  // [layer][kv_head]: of what is hashed first; empty: nothing yet
  uint32_t mean_end = 0;   // cut before here, a sequence is hashed anew
  uint32_t prompt_candidates_end = 0;
  // The last token of a block that left a rolling window right behind the prompt: what is fed at
  // the prompt's end stops before it, and the block does not come again. Attended as it is.
  uint32_t skipped = UINT32_MAX;
  Sampler(const Case& c, uint32_t k, uint32_t l, Tally* t) : of(c), bits(k), tables(l), tally(t) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Sampler>(*this); }

  uint32_t window_begin(const Track& track) const {
    return forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin;
  }
  void hash_first(const Track& track, const Indices& tokens) {
    mean.clear();
    if (tokens.empty()) return;
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer) {
      mean.emplace_back();
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g)
        mean[layer].push_back(magicpig::mean_key(track.k(layer, g), tokens));
    }
    mean_end = std::max(tokens.back() + 1, track.prompt_end());
  }
  void hash_candidates(const Track& track) {
    hash_first(track, candidate_tokens(of.cache, track.size(), track.prompt_end()));
    const uint32_t end = window_begin(track);
    const bool leaves_next = !of.cache.window_from_prompt && (end + 1) % of.cache.block_size == 0;
    skipped = leaves_next ? end : UINT32_MAX;
  }
  void prompted(const Track& track) override {
    if (mean.empty()) hash_candidates(track);
    prompt_candidates_end = window_begin(track);
  }
  void truncated(const Track& track) override {
    const bool anew = !mean.empty() && track.size() < mean_end;
    if (anew) hash_candidates(track);
    if (anew || track.size() == track.prompt_end()) prompt_candidates_end = window_begin(track);
    if (skipped != UINT32_MAX && skipped >= track.size()) skipped = UINT32_MAX;
  }
  Expected expect(const Track& track, uint32_t, uint32_t) override {
    const uint32_t n = track.size();
    const Indices candidates = candidate_tokens(of.cache, n, track.prompt_end());
    if (mean.empty()) {  // the prompt was too short
      Indices gone;
      for (const uint32_t t : candidates)
        if (hashed(t, window_begin(track))) gone.push_back(t);
      hash_first(track, gone);
    }
    Expected out(forced_tokens(of.cache, n, track.prompt_end()), 1,
                 {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0});
    out.any_subset = bits > 0;
    return out;
  }
  // Tokens that left the window later are hashed when their whole block has; exact until then.
  bool hashed(uint32_t token, uint32_t before) const {
    const uint32_t b = of.cache.block_size;
    return token != skipped && (token < prompt_candidates_end || (token / b + 1) * b <= before);
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    const uint32_t n = track.size();
    const Indices candidates = candidate_tokens(of.cache, n, track.prompt_end());
    for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h) {
      const uint32_t g = of.shape.heads.kv_head(h);
      const Vector q = track.q(layer, h, n - 1);
      for (const uint32_t t : candidates) {
        if (!hashed(t, candidates.back() + 1)) {
          CHECK(holds(in_fact.tokens[g], t));
          continue;
        }
        const double u = magicpig::inclusion(
            magicpig::cosine(q, magicpig::minus(track.k(layer, g)[t], mean[layer][g])), bits,
            tables);
        tally->expected += u;
        const Indices& tokens = in_fact.tokens[g];
        const auto at = std::lower_bound(tokens.begin(), tokens.end(), t) - tokens.begin();
        if (!holds(tokens, t)) continue;
        const double weight =
            in_fact.weight[g][static_cast<size_t>(at)][h % of.shape.heads.group()];
        if (weight == -kInfinity) continue;
        tally->drawn += 1;
        tally->weights += 1;
        const double off = std::abs(weight - (bits > 0 ? magicpig::log_weight(u) : 0.0));
        tally->worst_weight = std::max(tally->worst_weight, off);
      }
    }
  }
};

TEST_CASE("MagicPIG draws as often as it says and weighs by the logarithm") {
  Report report;
  Tally all;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, {});
    Random random(i);
    of.cache.window_from_prompt = random.one_in(2);
    of.cache.window_tokens = std::max(of.cache.window_tokens, 1u);
    if (of.cache.window_from_prompt)
      of.cache.window_flush_tokens = random.one_in(2) ? 0 : 16 + random.below(40);
    of.shape.one_zero_key_in = 0;
    const uint32_t bits = random.one_in(8) ? 0 : 3 + random.below(6);
    const uint32_t n_tables = 10 + random.below(60);
    Tally one;
    duel(of,
         {"[selector]\nplugin = 'kvasir.magicpig'\nK = " + std::to_string(bits) +
              "\nL = " + std::to_string(n_tables) + "\n",
          "", 0},
         std::make_unique<Sampler>(of, bits, n_tables, &one), report);
    all.drawn += one.drawn;
    all.expected += one.expected;
    all.square += (one.drawn - one.expected) * (one.drawn - one.expected);
    all.weights += one.weights;
    all.worst_weight = std::max(all.worst_weight, one.worst_weight);
  }
  MESSAGE("magicpig: ", report.text(), "; drew ", all.drawn, ", expected ", all.expected,
          ", standard error ", std::sqrt(all.square), "; log-weights within ", all.worst_weight);
  check_reach(report, "magicpig");
  CHECK(all.weights > 1000);
  CHECK(all.worst_weight < 1e-4);
  CHECK(std::abs(all.drawn - all.expected) < 4.0 * std::sqrt(all.square));
  CHECK(all.drawn == doctest::Approx(all.expected).epsilon(0.1));
  CHECK(report.worst_output < 1e-4);
}

}  // namespace
