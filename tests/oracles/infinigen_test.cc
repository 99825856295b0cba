// InfiniGen in the runtime against its oracle: tokens near the largest rehearsed logit.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/infinigen.h"

#include "tests/oracles/harness/duel.h"
#include "tests/oracles/skew_file.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace kvasir::oracle;
using infinigen::ColumnScore;

struct Setting {
  double alpha = 4, ratio = 1, slack = 0;
  Reduce group = Reduce::kMax;
  ColumnScore score = ColumnScore::kQuery;
  double share = 0;  // of the tokens cached, as the cap; 0: budget_tokens
  bool is_8_bits = false;
  uint32_t refresh_every = 0;
  bool skews = false, offline = false;  // offline: the file says which columns
  Skewing skewing;
  uint32_t skew_tokens = 0;  // A of so many last queries of each prompt
};

struct Rehearsed : Follower {
  Case of;
  std::shared_ptr<const Setting> setting;
  struct Head {
    Vector q_sum, k_sum;  // over the queries of all prompts, and all keys
    Vector recent;        // over the queries since the columns were chosen
    Indices columns;
    Vectors asked, asked_since;  // skew_tokens: queries of prompts; since the columns were chosen
    Vectors own_skew;            // made of them; empty: none yet
    bool has_columns = false;
  };
  std::vector<std::vector<Head>> heads;  // [layer][kv_head]
  std::vector<bool> rehearsed;           // [layer]: in this step
  infinigen::Rehearsal rehearsal;        // of all heads, made when the first one is asked for
  double high = 0;                       // the largest of its logits
  Rehearsed(const Case& c, std::shared_ptr<const Setting> s) : of(c), setting(std::move(s)) {
    start();
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Rehearsed>(*this); }

  uint64_t n_columns() const {
    return infinigen::column_count(setting->ratio, of.shape.heads.head_dim);
  }
  const Vectors& skew(uint32_t layer, uint32_t g) const {
    static const Vectors identity;
    if (setting->skew_tokens > 0) return heads[layer][g].own_skew;
    return setting->skews ? setting->skewing.a[layer][g] : identity;
  }
  // Until a prompt is read, the first columns count.
  void start() {
    const uint32_t dim = of.shape.heads.head_dim;
    const bool both = setting->score == ColumnScore::kUnion;
    const auto first = static_cast<uint32_t>(std::min<uint64_t>(n_columns() * (both ? 2 : 1), dim));
    const Vector none(dim, 0.0);
    rehearsed.assign(of.shape.n_layers, false);
    heads.assign(of.shape.n_layers,
                 std::vector<Head>(of.shape.heads.n_kv_heads,
                                   Head{none, none, none, range(0, first), {}, {}, {}, false}));
    for (uint32_t layer = 0; setting->offline && layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g)
        heads[layer][g].columns =
            infinigen::columns_by(setting->score, setting->skewing.q_sum[layer][g],
                                  setting->skewing.k_sum[layer][g], n_columns());
  }
  void choose(Head& head, const Vector& queries) const {
    if (!setting->offline)
      head.columns = infinigen::columns_by(setting->score, queries, head.k_sum, n_columns());
    head.recent.assign(head.recent.size(), 0.0);
  }
  // The first columns of the queries' own skew. Queries that span too little leave what is there,
  // or else the columns with the largest sums of squares.
  void skew_by(Head& head, const Vectors& queries) const {
    const Vectors own = infinigen::first_singular_vectors(queries, n_columns());
    if (!own.empty()) {
      head.own_skew = own;
      head.columns = range(0, static_cast<uint32_t>(own.size()));
    } else if (!head.has_columns) {
      Vector squares(of.shape.heads.head_dim, 0.0);
      for (const Vector& q : queries)
        for (size_t d = 0; d < q.size(); ++d) squares[d] += q[d] * q[d];
      head.columns = infinigen::largest(squares, n_columns()).chosen();
    }
    head.has_columns = true;
    head.asked_since.clear();
  }
  void add_queries(const Track& track, uint32_t layer, uint32_t g, uint32_t begin, uint32_t end,
                   Vectors& to) const {
    const uint32_t group = of.shape.heads.group();
    for (uint32_t pos = begin; pos < end; ++pos)
      for (uint32_t h = g * group; h < (g + 1) * group; ++h) to.push_back(track.q(layer, h, pos));
  }
  // Queries and keys of the tokens [begin, end).
  Vector query_sum(const Track& track, uint32_t layer, uint32_t g, uint32_t begin,
                   uint32_t end) const {
    const uint32_t group = of.shape.heads.group();
    Vectors q;
    for (uint32_t h = g * group; h < (g + 1) * group; ++h)
      for (uint32_t pos = begin; pos < end; ++pos) q.push_back(track.q(layer, h, pos));
    return infinigen::magnitude(q, skew(layer, g));
  }
  void add_keys(const Track& track, uint32_t layer, uint32_t g, uint32_t begin, uint32_t end) {
    if (setting->score == ColumnScore::kQuery) return;
    const Vectors& k = track.k(layer, g);
    Vector& sum = heads[layer][g].k_sum;
    sum = reduce(
        {sum, infinigen::magnitude(Vectors(k.begin() + begin, k.begin() + end), skew(layer, g))},
        Reduce::kSum);
  }
  void prompted(const Track& track) override {
    const uint32_t begin = track.prompt_begin(), end = track.size();
    for (uint32_t layer = 1; layer < of.shape.n_layers; ++layer)  // layer 0 is dense
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads && !setting->offline; ++g) {
        Head& head = heads[layer][g];
        if (setting->skew_tokens > 0) {
          add_queries(track, layer, g, std::max(begin, end - std::min(end, setting->skew_tokens)),
                      end, head.asked);
          skew_by(head, head.asked);
          continue;
        }
        head.q_sum = reduce({head.q_sum, query_sum(track, layer, g, begin, end)}, Reduce::kSum);
        add_keys(track, layer, g, begin, end);
        choose(head, head.q_sum);
      }
  }
  // Sums keep what the forgotten queries added, and the columns stay: unless nothing is left.
  void truncated(const Track& track) override {
    if (track.size() == 0) start();
  }
  // Of the query heads of one kv head made one; candidates are tokens.
  Vector logits_of(const Track& track, uint32_t layer, uint32_t g,
                   const Indices& candidates) const {
    const uint32_t group = of.shape.heads.group();
    const Indices& columns = heads[layer][g].columns;
    const Vectors &k = track.k(layer, g), &a = skew(layer, g);
    Vectors members(group), q;
    for (uint32_t m = 0; m < group; ++m) {
      const Vector whole = track.q(layer, g * group + m, track.size() - 1);
      q.push_back(setting->is_8_bits ? infinigen::part(whole, a, columns, true)
                                     : infinigen::projected(whole, a, columns));
    }
    for (const uint32_t t : candidates) {
      const Vector key = setting->is_8_bits ? infinigen::part(k[t], a, columns, true) : Vector();
      for (uint32_t m = 0; m < group; ++m)
        members[m].push_back(track.scale() * dot(q[m], setting->is_8_bits ? key : k[t]));
    }
    return reduce(members, setting->group);
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    const uint32_t n = track.size();
    const Forced forced = forced_tokens(of.cache, n, track.prompt_end());
    const Indices candidates = candidate_tokens(of.cache, n, track.prompt_end());
    const bool covers = setting->share == 0 && candidates.size() <= of.budget_tokens;
    rehearsed[layer] = layer > 0 && !covers;
    if (!rehearsed[layer] || candidates.empty())
      return {forced, 1, {candidates, Vector(candidates.size(), 0.0), candidates.size(), 0}};
    if (kv_head > 0) return fetched(forced, candidates, kv_head);
    rehearsal = {};
    high = 0;
    rehearsal.alpha = setting->alpha;
    rehearsal.cap = setting->share > 0
                        ? std::max<uint64_t>(1, static_cast<uint64_t>(setting->share * n))
                        : of.budget_tokens;
    for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
      rehearsal.logit.push_back(logits_of(track, layer, g, candidates));
      for (const double s : rehearsal.logit.back()) high = std::max(high, std::abs(s));
    }
    return fetched(forced, candidates, kv_head);
  }
  // By what was rehearsed for all heads when the first one was asked for.
  Expected fetched(const Forced& forced, const Indices& candidates, uint32_t kv_head) const {
    Expected out(
        forced, 1,
        infinigen::choose(rehearsal, candidates, kv_head, infinigen::common_count(rehearsal)));
    std::tie(out.n_low, out.n_high) = infinigen::count_bounds(rehearsal, setting->slack * high);
    return out;
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (const Indices& units : in_fact.units) CHECK(units.size() == in_fact.units[0].size());
    const uint32_t n = track.size(), every = setting->refresh_every;
    for (uint32_t g = 0; layer > 0 && g < of.shape.heads.n_kv_heads; ++g) {
      Head& head = heads[layer][g];
      add_keys(track, layer, g, n - 1, n);
      head.has_columns = true;
      if (every == 0) continue;
      if (setting->skew_tokens > 0) {
        if (rehearsed[layer]) add_queries(track, layer, g, n - 1, n, head.asked_since);
        if ((n - track.prompt_end()) % every == 0) skew_by(head, Vectors(head.asked_since));
        continue;
      }
      if (rehearsed[layer])
        head.recent = reduce({head.recent, query_sum(track, layer, g, n - 1, n)}, Reduce::kSum);
      const bool has_any = *std::max_element(head.recent.begin(), head.recent.end()) > 0;
      if ((n - track.prompt_end()) % every == 0 && has_any) choose(head, Vector(head.recent));
    }
  }
};

// Options of one case, drawn; the names of those that are met.
Setting draw(const Case& of, Random& random, std::vector<std::string>& met) {
  Setting out;
  out.alpha = 1.0 + 0.5 * random.below(9);
  out.ratio = random.one_in(3) ? 1.0 : 0.2 + 0.1 * random.below(5);
  out.group = static_cast<Reduce>(random.below(3));
  out.skews = random.one_in(3);
  out.offline = out.skews && random.one_in(4);
  out.score = static_cast<ColumnScore>(random.below(3));
  out.is_8_bits = random.one_in(4);
  if (random.one_in(4)) out.share = (1 + random.below(50)) / 100.0;
  if (out.share == 0 && !out.offline && random.one_in(3)) out.refresh_every = 1 + random.below(6);
  if (!out.skews && random.one_in(3)) {
    out.skew_tokens = 1 + random.below(80);
    out.score = ColumnScore::kQuery;
  }
  if (out.skews) out.skewing = random_skewing(of.shape.n_layers, of.shape.heads, random);
  met.push_back(std::vector<std::string>{"q", "qk", "union"}[static_cast<size_t>(out.score)]);
  if (out.skews) met.push_back("skew");
  if (out.skew_tokens > 0) met.push_back("skew_tokens");
  if (out.offline) met.push_back("offline");
  if (out.is_8_bits) met.push_back("int8");
  if (out.share > 0) met.push_back("budget");
  if (out.refresh_every > 0) met.push_back("refresh_every");
  return out;
}

TEST_CASE("InfiniGen fetches one common count of the best rehearsed tokens") {
  Report report;
  kvasir::test::TempDir dir;
  CaseOptions options;
  options.n_layers = 3;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, options);
    Random random(i);
    std::vector<std::string> met;
    const bool is_short = random.one_in(2);
    auto setting = std::make_shared<Setting>(draw(of, random, met));
    // Partial keys are stored in 16 bits: exact only for short numbers that nothing turns.
    const bool is_exact =
        is_short && !setting->skews && setting->skew_tokens == 0 && !setting->is_8_bits;
    if (is_short) of.shape.rope = false;
    of.shape.short_keys = !of.shape.rope;
    // 8 bits are rounded here, too: in single precision a number may fall to the next step.
    setting->slack = is_exact ? 1e-5 : setting->is_8_bits ? 4e-3 : 2e-3;
    const uint32_t ahead = random.one_in(3) ? 0 : 1;
    const auto number = [](auto x) { return std::to_string(x) + "\n"; };
    const std::string reduces[] = {"sum", "mean", "max"};
    std::string tables =
        "[selector]\nplugin = 'kvasir.infinigen'\nalpha = " + number(setting->alpha) +
        "partial_weight_ratio = " + number(setting->ratio) + "gqa_reduce = '" +
        reduces[static_cast<size_t>(setting->group)] + "'\ncolumn_score = '" + met[0] +
        "'\npartial_type = '" + (setting->is_8_bits ? "int8" : "f16") +
        "'\nspeculate_ahead = " + number(ahead) +
        "refresh_every = " + number(setting->refresh_every);
    if (setting->skew_tokens > 0) tables += "skew_tokens = " + number(setting->skew_tokens);
    tables += setting->share > 0 ? "budget = " + number(setting->share)
                                 : "budget_tokens = " + number(of.budget_tokens);
    if (setting->skews)
      tables += "skew_file = '" + dir.write("a.skew", skew_file(setting->skewing, of.shape.heads)) +
                "'\ncolumns = '" + (setting->offline ? "offline" : "prompt") + "'\n";
    duel(of, {tables, "dense_layers = [0]\n", setting->slack, {}, met},
         std::make_unique<Rehearsed>(of, setting), report);
  }
  conclude(report, "infinigen",
           {.options = {"q", "qk", "union", "skew", "skew_tokens", "offline", "int8", "budget",
                        "refresh_every"}});
}

}  // namespace
