// Twilight in the runtime against its oracle: alone, and behind selectors of blocks.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/twilight.h"

#include "tests/oracles/block_topk.h"
#include "tests/oracles/exact.h"
#include "tests/oracles/harness/duel.h"
#include "tests/oracles/representative.h"

namespace {

using namespace kvasir::oracle;

enum class Base { kNone, kMinMax, kMean, kExact };

struct Options {
  Base base = Base::kNone;
  double p = 0.95;
  uint32_t cap = 0;  // budget_tokens; 0: none
  bool shared = false, bypass = true;
};

struct Tally {
  uint64_t kept = 0, unsure = 0;  // tokens
  uint64_t lists = 0, skipped = 0, capped = 0;
};

struct Pruned : Follower {
  Case of;
  Options options;
  Tally* tally;
  struct List {
    Indices candidates;     // tokens
    bool doubtful = false;  // the base's choice is a near-tie
  };
  std::vector<List> lists;  // of the layer at hand
  Pruned(const Case& c, const Options& o, Tally* t)
      : of(c), options(o), tally(t), lists(c.shape.heads.n_kv_heads) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Pruned>(*this); }

  Choice chosen_first(const Track& track, uint32_t layer, uint32_t kv_head,
                      const Indices& blocks) const {
    const uint32_t n = track.size(), b = of.cache.block_size;
    const uint64_t budget = of.budget_tokens / b;
    const Heads& heads = of.shape.heads;
    if (options.base == Base::kExact) {
      Vectors mass;
      for (uint32_t h = 0; h < heads.n_q_heads; ++h)
        if (options.shared || heads.kv_head(h) == kv_head)
          mass.push_back(track.probability(layer, h, n - 1, range(0, n)));
      return exact::best_blocks(range(0, n), mass, blocks, b, budget);
    }
    const Vectors queries = track.queries(layer, n - 1);
    const auto score = [&](uint32_t h, uint32_t block) {
      const Vectors& k = track.k(layer, heads.kv_head(h));
      const Vectors keys(k.begin() + block * b, k.begin() + (block + 1) * b);
      const Vector& q = queries[h];
      return options.base == Base::kMean ? dot(q, representative::mean(keys))
                                         : representative::bound(q, keys);
    };
    return block_topk::choose(heads, blocks, budget, score, Reduce::kSum, options.shared,
                              track.scale())[options.shared ? 0 : kv_head];
  }

  List candidates(const Track& track, uint32_t layer, uint32_t kv_head) const {
    const uint32_t n = track.size(), b = of.cache.block_size;
    if (options.base == Base::kNone)
      return {candidate_tokens(of.cache, n, track.prompt_end()), false};
    const Indices blocks = candidate_blocks(of.cache, n, track.prompt_end());
    if (blocks.size() <= of.budget_tokens / b) return {tokens_of(blocks, b, n), false};
    const Choice choice = chosen_first(track, layer, kv_head, blocks);
    // Would one more or one less change places with a neighbour in rank?
    Vector sorted = choice.score;
    std::sort(sorted.rbegin(), sorted.rend());
    double scale = choice.scale;
    if (scale == 0) scale = std::max(std::abs(sorted.front()), std::abs(sorted.back()));
    if (scale == Choice::kOfThreshold) scale = sorted[choice.n - 1];
    const bool doubtful = sorted[choice.n - 1] - sorted[choice.n] < 1e-5 * scale;
    return {tokens_of(choice.chosen(), b, n), doubtful};
  }

  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size();
    lists[kv_head] = candidates(track, layer, kv_head);
    const bool in_blocks = options.base != Base::kNone;
    const Indices all =
        lists[kv_head].doubtful
            ? tokens_of(candidate_blocks(of.cache, n, track.prompt_end()), of.cache.block_size, n)
            : lists[kv_head].candidates;
    Expected out(in_blocks ? forced_blocks(of.cache, n, track.prompt_end())
                           : forced_tokens(of.cache, n, track.prompt_end()),
                 1, {all, Vector(all.size(), 0.0), all.size(), 0});
    out.n_low = 0;
    out.any_subset = true;
    return out;
  }

  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    size_t most = 0;
    for (const List& list : lists) most = std::max(most, list.candidates.size());
    for (uint32_t g = 0; g < lists.size(); ++g) {
      ++tally->lists;
      if (lists[g].doubtful) ++tally->skipped;
      if (lists[g].doubtful || lists[g].candidates.empty()) continue;
      if (options.bypass && options.cap > 0 && most <= options.cap)
        CHECK(in_fact.units[g] == lists[g].candidates);
      else
        judge_list(track, layer, g, in_fact.units[g]);
    }
  }

  void judge_list(const Track& track, uint32_t layer, uint32_t g, const Indices& actual) {
    const Indices& candidates = lists[g].candidates;
    const uint32_t group = of.shape.heads.group();
    Indices sure, possible;
    twilight::Shares sums{Vector(candidates.size(), 0.0), Vector(candidates.size(), 0.0)};
    std::vector<bool> exact(candidates.size());
    for (uint32_t h = g * group; h < (g + 1) * group; ++h) {
      const Vector q = track.q(layer, h, track.size() - 1);
      std::vector<twilight::Logit> logit;
      for (const uint32_t t : candidates)
        logit.push_back(twilight::estimate(q, track.k(layer, g)[t], track.scale()));
      const twilight::Kept kept = twilight::smallest_set(logit, options.p);
      sure = unite(sure, pick(candidates, kept.sure));
      possible = unite(possible, pick(candidates, kept.possible));
      const twilight::Shares shares = twilight::shares(logit);
      for (size_t i = 0; i < candidates.size(); ++i) {
        sums.low[i] += shares.low[i];
        sums.high[i] += shares.high[i];
        exact[i] = logit[i].exact;
      }
    }
    tally->kept += actual.size();
    tally->unsure += possible.size() - sure.size();
    CHECK(without(actual, possible) == Indices());
    if (options.cap == 0 || actual.size() < options.cap) {
      CHECK(without(sure, actual) == Indices());
      return;
    }
    CHECK(actual.size() == options.cap);
    tally->capped += sure.size() > options.cap ? 1 : 0;
    // The largest sums over the group stay, of equal ones the lower tokens.
    const auto at = [&](uint32_t token) {
      return static_cast<size_t>(std::lower_bound(candidates.begin(), candidates.end(), token) -
                                 candidates.begin());
    };
    double most_lost = 0, least_kept = kInfinity;
    uint32_t first_lost = UINT32_MAX, last_kept = 0;  // of those with equal sums
    for (const uint32_t t : without(sure, actual)) {
      most_lost = std::max(most_lost, sums.low[at(t)]);
      if (exact[at(t)]) first_lost = std::min(first_lost, t);
    }
    for (const uint32_t t : actual) {
      least_kept = std::min(least_kept, sums.high[at(t)]);
      if (exact[at(t)]) last_kept = t;
    }
    CHECK(most_lost <= least_kept);
    CHECK(last_kept <= first_lost);
  }
};

TEST_CASE("tokens that carry the share p of the estimated attention are kept") {
  Report report;
  Tally tally;
  const char* bases[] = {"", "[[selector]]\nplugin = 'kvasir.block_topk'\n",
                         "[[selector]]\nplugin = 'kvasir.block_topk'\n",
                         "[[selector]]\nplugin = 'kvasir.oracle'\n"};
  const char* representatives[] = {"",
                                   "[representative]\nplugin = 'kvasir.minmax'\ndtype = 'f32'\n",
                                   "[representative]\nplugin = 'kvasir.mean'\ndtype = 'f32'\n", ""};
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, {});
    Random random(i);
    of.budget_tokens += of.cache.block_size;
    Options options;
    options.base = static_cast<Base>(random.below(4));
    options.p = random.one_of(std::vector<double>{0.3, 0.7, 0.9, 0.95, 0.99, 1.0});
    options.cap = random.one_in(3) ? 1 + random.below(of.budget_tokens) : 0;
    options.shared = random.one_in(4);
    options.bypass = !random.one_in(4);
    const auto kind = static_cast<size_t>(options.base);
    std::string tables = bases[kind];
    if (options.base != Base::kNone)
      tables += "budget_tokens = " + std::to_string(of.budget_tokens) + "\n";
    tables += "[[selector]]\nplugin = 'kvasir.twilight'\np = " + std::to_string(options.p) + "\n";
    if (options.cap > 0) tables += "budget_tokens = " + std::to_string(options.cap) + "\n";
    tables += representatives[kind];
    duel(of,
         {tables,
          std::string("head_select_mode = '") + (options.shared ? "shared" : "separate") +
              "'\nbypass = " + (options.bypass ? "true" : "false") + "\n",
          0},
         std::make_unique<Pruned>(of, options, &tally), report);
  }
  MESSAGE("twilight: ", tally.kept, " tokens kept, ", tally.unsure, " unsure; of ", tally.lists,
          " lists ", tally.capped, " were cut to the budget, ", tally.skipped,
          " skipped behind near-ties");
  CHECK(tally.unsure * 50 <= tally.kept);
  CHECK(tally.skipped * 50 <= tally.lists);
  if (!are_cases_reduced()) CHECK(tally.capped * 20 > report.reach.cases);
  conclude(report, "twilight");
}

}  // namespace
