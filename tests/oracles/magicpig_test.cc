// MagicPIG in the runtime against its oracle: what the planes of its README draw, token by token,
// and that this comes to the probability and weight that the method promises.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/magicpig.h"

#include "tests/oracles/harness/duel.h"
#include "tests/oracles/snapkv.h"
#include "tests/support/larger_or_nan.h"

namespace {

using namespace kvasir::oracle;

struct Setting {
  uint32_t bits = 0, tables = 0;
  uint64_t seed = 0;
  bool per_head = false;  // planes
  bool judges = false;    // every draw; else how many there are
  uint32_t static_tokens = 0, static_queries = 32, kernel = 5;  // 0 tokens: none are static
};

struct Decisions {
  uint64_t drawn = 0, passed = 0, wrong = 0, unsure = 0;
  std::string text() const {
    return std::to_string(drawn) + " draws and " + std::to_string(passed) + " passes, " +
           std::to_string(wrong) + " wrong, " + std::to_string(unsure) + " unsure";
  }
};

struct Tally {
  double drawn = 0, expected = 0;  // tokens of all heads and steps
  double square = 0;               // over cases: (drawn - expected)^2
  double worst_weight = 0;
  uint64_t weights = 0;
  Decisions shared, per_head;  // by planes
  uint64_t static_tokens = 0;  // found attended
};

// Static tokens of one kv head: those that surely are, and those that may be.
struct Static {
  Indices sure, possible;
};

struct Sampler : Follower {
  Case of;
  Setting setting;
  Tally* tally;
  std::vector<magicpig::Hash>
      hashes;  // [kv_head], or one for all; layers share them up to the 16th
  std::vector<std::vector<std::map<uint32_t, Indices>>> codes;  // [layer][kv_head][token]
  std::vector<std::vector<Static>> fixed;                       // [layer][kv_head]
  std::vector<Vectors> mean;  // [layer][kv_head]: of what is hashed first; empty: nothing yet
  uint32_t mean_end = 0;      // cut before here, a sequence is hashed anew
  uint32_t prompt_candidates_end = 0;
  // The last token of a block that left a rolling window right behind the prompt: what is fed at
  // the prompt's end stops before it, and the block does not come again. Attended as it is.
  uint32_t skipped = UINT32_MAX;
  Sampler(const Case& c, const Setting& s, Tally* t) : of(c), setting(s), tally(t) {
    const Heads& heads = of.shape.heads;
    for (uint32_t set = 0; set < (setting.per_head ? heads.n_kv_heads : 1); ++set)
      hashes.push_back({setting.bits, setting.tables,
                        magicpig::planes(setting.seed, set, uint64_t{setting.bits} * setting.tables,
                                         heads.head_dim)});
    codes.assign(of.shape.n_layers, std::vector<std::map<uint32_t, Indices>>(heads.n_kv_heads));
    fixed.assign(of.shape.n_layers, std::vector<Static>(heads.n_kv_heads));
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Sampler>(*this); }

  uint32_t window_begin(const Track& track) const {
    return forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin;
  }
  void hash_first(const Track& track, const Indices& tokens) {
    mean.clear();
    for (auto& layer : codes)
      for (auto& head : layer) head.clear();
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
  // The candidates that the prompt's end attends to most (SnapKV).
  Static static_of(const Track& track, uint32_t layer, uint32_t g) const {
    Static out;
    if (setting.static_tokens == 0 || setting.bits == 0) return out;
    const uint32_t n = track.size(), end = window_begin(track), group = of.shape.heads.group();
    const uint32_t first = n - std::min(n - track.prompt_begin(), setting.static_queries);
    Vectors votes;
    for (uint32_t h = g * group; h < (g + 1) * group; ++h) {
      Vectors q;
      for (uint32_t pos = first; pos < n; ++pos) q.push_back(track.q(layer, h, pos));
      votes.push_back(snapkv::vote(q, track.k(layer, g), track.scale()));
      votes.back().resize(end);
    }
    const Vector score =
        snapkv::pool(reduce(votes, Reduce::kSum), setting.kernel, snapkv::Pooling::kMean);
    Choice best{candidate_tokens(of.cache, n, track.prompt_end()), {}, setting.static_tokens, 0};
    for (const uint32_t t : best.candidates) best.score.push_back(score[t]);
    out.sure = out.possible = best.chosen();
    if (out.sure.size() == best.candidates.size()) return out;
    double threshold = kInfinity;
    for (const uint32_t t : out.sure) threshold = std::min(threshold, score[t]);
    const auto is_near = [&](uint32_t t) {
      return std::abs(score[t] - threshold) < 1e-5 * threshold;
    };
    if (std::none_of(best.candidates.begin(), best.candidates.end(),
                     [&](uint32_t t) { return is_near(t) && !holds(out.possible, t); }))
      return out;
    std::erase_if(out.sure, is_near);
    for (const uint32_t t : best.candidates)
      if (is_near(t)) out.possible = unite(out.possible, {t});
    return out;
  }
  void prompted(const Track& track) override {
    if (mean.empty()) hash_candidates(track);
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g)
        fixed[layer][g] = static_of(track, layer, g);
    prompt_candidates_end = window_begin(track);
  }
  void truncated(const Track& track) override {
    const bool anew = !mean.empty() && track.size() < mean_end;
    if (anew) hash_candidates(track);
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
        const auto is_gone = [&](uint32_t t) { return anew || t >= track.size(); };
        for (Indices* list : {&fixed[layer][g].sure, &fixed[layer][g].possible})
          std::erase_if(*list, is_gone);
        std::erase_if(codes[layer][g], [&](const auto& of_one) { return is_gone(of_one.first); });
      }
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
    out.any_subset = setting.bits > 0;
    return out;
  }
  // Tokens that left the window later are hashed when their whole block has; exact until then.
  bool hashed(uint32_t token, uint32_t before) const {
    const uint32_t b = of.cache.block_size;
    return token != skipped && (token < prompt_candidates_end || (token / b + 1) * b <= before);
  }
  static constexpr double kMargin = 1e-5;
  const magicpig::Hash& hash(uint32_t g) const { return hashes[setting.per_head ? g : 0]; }
  // The draw of one query head against what the planes say.
  void judge_draw(const Indices& query_code, const Vector& centred, uint32_t layer, uint32_t g,
                  uint32_t token, bool drawn) {
    Indices& code = codes[layer][g][token];
    if (code.empty()) code = magicpig::codes(hash(g), centred, kMargin);
    const auto [low, high] = magicpig::hit_bounds(query_code, code);
    Decisions& of_these = setting.per_head ? tally->per_head : tally->shared;
    if (low < 2 && high >= 2) {
      ++of_these.unsure;
      return;
    }
    ++(drawn ? of_these.drawn : of_these.passed);
    of_these.wrong += drawn != (low >= 2) ? 1 : 0;
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    const uint32_t n = track.size(), group = of.shape.heads.group();
    const Indices candidates = candidate_tokens(of.cache, n, track.prompt_end());
    for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h) {
      const uint32_t g = of.shape.heads.kv_head(h);
      const Indices& tokens = in_fact.tokens[g];
      const Vector q = track.q(layer, h, n - 1);
      const bool judges = setting.judges && setting.bits > 0;
      const Indices code = judges ? magicpig::codes(hash(g), q, kMargin) : Indices();
      for (const uint32_t t : candidates) {
        const auto at = std::lower_bound(tokens.begin(), tokens.end(), t) - tokens.begin();
        const double weight =
            holds(tokens, t) ? in_fact.weight[g][static_cast<size_t>(at)][h % group] : -kInfinity;
        if (!hashed(t, candidates.back() + 1) || holds(fixed[layer][g].sure, t)) {
          CHECK(weight == 0.0);
          tally->static_tokens += holds(fixed[layer][g].sure, t) ? 1 : 0;
          continue;
        }
        if (holds(fixed[layer][g].possible, t)) continue;
        const Vector centred = magicpig::minus(track.k(layer, g)[t], mean[layer][g]);
        if (judges) judge_draw(code, centred, layer, g, t, weight != -kInfinity);
        const double u =
            magicpig::inclusion(magicpig::cosine(q, centred), setting.bits, setting.tables);
        tally->expected += u;
        if (weight == -kInfinity) continue;
        tally->drawn += 1;
        tally->weights += 1;
        const double off = std::abs(weight - (setting.bits > 0 ? magicpig::log_weight(u) : 0.0));
        tally->worst_weight = kvasir::test::larger_or_nan(tally->worst_weight, off);
      }
    }
  }
};

TEST_CASE("MagicPIG draws what its planes say, as often as it says, and weighs by the logarithm") {
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
    Setting setting;
    setting.bits = random.one_in(8) ? 0 : 3 + random.below(6);
    setting.tables = 10 + random.below(60);
    setting.seed = random.one_in(2) ? of.seed : random.below(1000);
    setting.per_head = random.one_in(2);
    setting.judges = of.context < 700;  // the oracle hashes slowly
    if (random.one_in(3)) {
      setting.static_tokens = 1 + random.below(of.budget_tokens);
      setting.static_queries = 1 + random.below(40);
      setting.kernel = 1 + 2 * random.below(4);
    }
    const auto number = [](auto x) { return std::to_string(x) + "\n"; };
    std::string tables = "[selector]\nplugin = 'kvasir.magicpig'\nK = " + number(setting.bits) +
                         "L = " + number(setting.tables) + "planes = '" +
                         (setting.per_head ? "per_head" : "shared") + "'\ntable_layout = '" +
                         (random.one_in(3) ? "csr" : "compact") + "'\n";
    if (setting.seed != of.seed) tables += "seed = " + number(setting.seed);
    if (setting.static_tokens > 0)
      tables += "static = 'snapkv'\nstatic_tokens = " + number(setting.static_tokens) +
                "static_queries = " + number(setting.static_queries) +
                "static_kernel_size = " + number(setting.kernel);
    Tally one = all;
    one.drawn = one.expected = 0;
    duel(of, {tables, "", 0}, std::make_unique<Sampler>(of, setting, &one), report);
    one.square += (one.drawn - one.expected) * (one.drawn - one.expected);
    one.drawn += all.drawn;
    one.expected += all.expected;
    all = one;
  }
  MESSAGE("magicpig: ", report.text(), "; drew ", all.drawn, ", expected ", all.expected,
          ", standard error ", std::sqrt(all.square), "; log-weights within ", all.worst_weight);
  MESSAGE("magicpig by its planes: ", all.shared.text(), "; a set per head: ", all.per_head.text(),
          "; ", all.static_tokens, " static tokens");
  check_reach(report, "magicpig");
  for (const Decisions& of : {all.shared, all.per_head}) {
    CHECK(of.wrong == 0);
    CHECK((are_cases_reduced() || std::min(of.drawn, of.passed) > 10000));
    CHECK(of.unsure * 500 <= of.drawn + of.passed);
  }
  CHECK((are_cases_reduced() || all.static_tokens > 10000));
  CHECK(all.weights > 1000);
  CHECK(all.worst_weight < 1e-4);
  CHECK(std::abs(all.drawn - all.expected) < 4.0 * std::sqrt(all.square));
  CHECK(all.drawn == doctest::Approx(all.expected).epsilon(0.1));
  CHECK(report.worst_output < 1e-4);
}

}  // namespace
