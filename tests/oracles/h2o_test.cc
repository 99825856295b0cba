// H2O in the runtime against its oracle: accumulated attention decides what stays.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/h2o.h"

#include "tests/oracles/harness/survivors.h"

namespace {

using namespace kvasir::oracle;

struct Setting {
  uint32_t heavy = 0, recent = 0;
  double ratio = 0;  // of the prompt for both, instead
  bool normalised = false, drop = true, once = false;
};

// Follows the kept set: after the prompt and after each step the heavy ones among the tokens older
// than the recent ones stay.
struct HeavyHitters : Follower {
  Case of;
  Setting setting;
  std::vector<std::vector<h2o::Accumulator>> mass;  // [layer][kv_head]
  std::vector<std::vector<Survivors>> kept;
  uint32_t planned_end = 0;  // cut before here, what was masked can be reached again
  HeavyHitters(const Case& c, const Setting& s) : of(c), setting(s) {
    mass.assign(of.shape.n_layers, std::vector<h2o::Accumulator>(of.shape.heads.n_kv_heads));
    kept.assign(of.shape.n_layers, std::vector<Survivors>(of.shape.heads.n_kv_heads));
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<HeavyHitters>(*this); }

  void add(const Track& track, uint32_t layer, uint32_t g, uint32_t pos, const Indices& seen) {
    Rows p;
    for (uint32_t h = g * of.shape.heads.group(); h < (g + 1) * of.shape.heads.group(); ++h)
      p.push_back(track.probability(layer, h, pos, seen));
    mass[layer][g].add(pos, seen, p);
  }
  // The same for the queries [begin, end) of a prompt, which share the reading of the keys.
  static constexpr uint32_t kBatch = 4;
  void add_batch(const Track& track, uint32_t layer, uint32_t g, uint32_t begin, uint32_t end) {
    const uint32_t group = of.shape.heads.group();
    const Rows& k = track.k(layer, g);
    const Indices seen = kept[layer][g].tokens(end);
    Rows q, logit(size_t{end - begin} * group);
    for (uint32_t pos = begin; pos < end; ++pos)
      for (uint32_t h = g * group; h < (g + 1) * group; ++h) q.push_back(track.q(layer, h, pos));
    for (const uint32_t t : seen)
      for (size_t i = t < begin ? 0 : size_t{t - begin} * group; i < q.size(); ++i)
        logit[i].push_back(track.scale() * dot(q[i], k[t]));
    for (uint32_t pos = begin; pos < end; ++pos) {
      Rows p;
      for (uint32_t h = 0; h < group; ++h) p.push_back(softmax(logit[(pos - begin) * group + h]));
      mass[layer][g].add(pos, Indices(seen.begin(), seen.begin() + std::ssize(p[0])), p);
    }
  }
  void plan(const Track& track, uint32_t layer, uint32_t g) {
    const uint32_t n = track.size(), end = track.prompt_end();
    uint32_t heavy = setting.heavy, recent = setting.recent;
    if (setting.ratio > 0) {
      heavy = h2o::ratio_budget(setting.ratio, end);
      recent = std::max(heavy, 1u);
    }
    const Indices sinks = range(0, std::min(of.cache.sink_tokens, n));
    kept[layer][g].plan({static_cast<uint32_t>(sinks.size()), n - std::min(n, recent)},
                        h2o::keep(mass[layer][g], without(kept[layer][g].tokens(n), sinks), n,
                                  recent, heavy, setting.normalised));
  }
  uint32_t window_begin(const Track& track) const {
    return forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin;
  }
  // Earlier prompts' sums count on.
  void prompted(const Track& track) override {
    planned_end = track.size();
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
        if (!setting.drop) kept[layer][g] = {};
        for (uint32_t pos = track.prompt_begin(); pos < track.size(); pos += kBatch)
          add_batch(track, layer, g, pos, std::min(pos + kBatch, track.size()));
        plan(track, layer, g);
      }
  }
  Indices expect_prefill(const Track&, uint32_t layer, uint32_t g, uint32_t, uint32_t to) override {
    return setting.drop ? kept[layer][g].tokens(to) : range(0, to);
  }
  // The plan was made one token ago, or when the prompt was done.
  Expected expect(const Track& track, uint32_t layer, uint32_t g) override {
    Survivors seen = kept[layer][g];
    if (!setting.drop) seen.truncate(window_begin(track));  // there masked ones are attended
    return seen.expected();
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
      kept[layer][g].settle(in_fact.tokens[g], setting.drop ? UINT32_MAX : window_begin(track));
      if (setting.once) continue;
      add(track, layer, g, track.size() - 1, in_fact.tokens[g]);
      plan(track, layer, g);
    }
  }
  Cut cut(const Track& track, uint32_t n) const override {
    return setting.drop ? cut_of_dropped(kept, n, window_begin(track)) : Cut::kPossible;
  }
  // Sums keep what the forgotten queries added.
  void truncated(const Track& track) override {
    const uint32_t n = track.size();
    const bool unmasked = !setting.drop && n < planned_end;
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
        mass[layer][g].truncate(n);
        kept[layer][g].truncate(n);
        if (unmasked) kept[layer][g] = {};
      }
    planned_end = std::min(planned_end, n);
  }
};

TEST_CASE("H2O keeps heavy hitters and recent tokens") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    CaseOptions options;
    // The oracle sums over all pairs of tokens: one layer of long prompts and large groups.
    options.n_layers = i % 7 == 5 || i % 3 == 2 ? 1 : 2;
    Case of = make_case(i, options);
    Random random(i);
    Setting setting;
    setting.normalised = random.one_in(3);
    setting.drop = !random.one_in(3);
    setting.once = random.one_in(4);
    setting.heavy = of.budget_tokens;
    setting.recent = std::max(of.cache.window_tokens + random.below(40), 1u);
    std::string budget = "hh_size = " + std::to_string(setting.heavy) +
                         "\nrecent_size = " + std::to_string(setting.recent);
    if (of.context > 0 && random.one_in(3)) {
      setting.ratio = (5 + random.below(40)) / 100.0;  // as the text below is read
      of.cache.window_tokens = 1;
      const std::string ratio = std::to_string(setting.ratio);
      budget = "heavy_ratio = " + ratio + "\nrecent_ratio = " + ratio;
    }
    const std::string tables = "[selector]\nplugin = 'kvasir.h2o'\n" + budget + "\nmode = '" +
                               (setting.drop ? "drop" : "mask") +
                               "'\nnormalize = " + (setting.normalised ? "true" : "false") +
                               "\nevict_at = '" + (setting.once ? "prompt_end" : "step") + "'\n";
    duel(of, {tables, "gqa_reduce = 'mean'\n", 1e-5}, std::make_unique<HeavyHitters>(of, setting),
         report);
  }
  conclude(report, "h2o");
}

}  // namespace
