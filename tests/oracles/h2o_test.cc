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
  bool shared = false;   // one set for all heads of a layer
  bool largest = false;  // of the query heads' sums, not their mean
  bool by_slot = false;
};

// Follows the kept set: after the prompt and after each step the heavy ones among the tokens older
// than the recent ones stay. Each of its sets is of one kv head, or of all.
struct HeavyHitters : Follower {
  Case of;
  Setting setting;
  std::vector<std::vector<std::vector<h2o::Accumulator>>> mass;  // [layer][set][sum]
  std::vector<std::vector<Survivors>> kept;                      // [layer][set]
  uint32_t planned_end = 0;  // cut before here, what was masked can be reached again
  HeavyHitters(const Case& c, const Setting& s) : of(c), setting(s) {
    const size_t n_sums = setting.largest ? n_members() : 1;
    mass.assign(of.shape.n_layers, std::vector<std::vector<h2o::Accumulator>>(
                                       n_sets(), std::vector<h2o::Accumulator>(n_sums)));
    kept.assign(of.shape.n_layers, std::vector<Survivors>(n_sets()));
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<HeavyHitters>(*this); }
  uint32_t n_sets() const { return setting.shared ? 1 : of.shape.heads.n_kv_heads; }
  uint32_t n_members() const { return of.shape.heads.n_q_heads / n_sets(); }
  uint32_t set_of(uint32_t kv_head) const { return setting.shared ? 0 : kv_head; }

  // The queries [begin, end), each of which sees what of `seen` does not come later, count for
  // their set. They share the reading of the keys.
  void add(const Track& track, uint32_t layer, uint32_t set, uint32_t begin, uint32_t end,
           const Indices& seen) {
    const uint32_t group = of.shape.heads.group(), first = set * n_members();
    const bool by_slot = is_by_slot(seen, end);
    Vectors p;  // [query][member]
    p.resize(size_t{end - begin} * n_members());
    for (uint32_t g = first / group; g < (first + n_members()) / group; ++g) {
      const Vectors turned = by_slot ? track.k_by_slot(layer, g, seen) : Vectors();
      Vectors q, logit(size_t{end - begin} * group);
      for (uint32_t pos = begin; pos < end; ++pos)
        for (uint32_t h = g * group; h < (g + 1) * group; ++h)
          q.push_back(track.q_at(layer, h, pos, by_slot ? slot_of(seen, pos) : pos));
      for (size_t s = 0; s < seen.size(); ++s) {
        const Vector& k = by_slot ? turned[s] : track.k(layer, g)[seen[s]];
        for (size_t i = seen[s] < begin ? 0 : size_t{seen[s] - begin} * group; i < q.size(); ++i)
          logit[i].push_back(track.scale() * dot(q[i], k));
      }
      for (size_t i = 0; i < q.size(); ++i)
        p[i / group * n_members() + g * group - first + i % group] = softmax(logit[i]);
    }
    for (uint32_t pos = begin; pos < end; ++pos) {
      const auto from = p.begin() + std::ptrdiff_t{pos - begin} * n_members();
      const Vectors members(from, from + n_members());
      const Indices tokens(seen.begin(), seen.begin() + std::ssize(members[0]));
      auto& sums = mass[layer][set];
      if (!setting.largest) sums[0].add(pos, tokens, members);
      for (size_t m = 0; setting.largest && m < sums.size(); ++m)
        sums[m].add(pos, tokens, {members[m]});
    }
  }
  // Where nothing is missing, slots are positions.
  bool is_by_slot(const Indices& seen, uint32_t end) const {
    return setting.by_slot && seen.size() < end;
  }
  static double slot_of(const Indices& seen, uint32_t token) {
    return static_cast<double>(std::lower_bound(seen.begin(), seen.end(), token) - seen.begin());
  }
  void add_prompt(const Track& track, uint32_t layer, uint32_t set) {
    constexpr uint32_t kBatch = 4;
    const uint32_t begin = track.prompt_begin(), n = track.size();
    // Keys are turned for the whole prompt at once.
    const uint32_t batch = is_by_slot(kept[layer][set].tokens(n), n) ? n : kBatch;
    for (uint32_t pos = begin; pos < n; pos += batch) {
      const uint32_t end = std::min(pos + batch, n);
      add(track, layer, set, pos, end, kept[layer][set].tokens(end));
    }
  }
  void plan(const Track& track, uint32_t layer, uint32_t set) {
    const uint32_t n = track.size(), end = track.prompt_end();
    uint32_t heavy = setting.heavy, recent = setting.recent;
    if (setting.ratio > 0) {
      heavy = h2o::ratio_budget(setting.ratio, end);
      recent = std::max(heavy, 1u);
    }
    const Indices sinks = range(0, std::min(of.cache.sink_tokens, n));
    Survivors& here = kept[layer][set];
    here.plan({static_cast<uint32_t>(sinks.size()), n - std::min(n, recent)},
              h2o::keep(mass[layer][set], without(here.tokens(n), sinks), n, recent, heavy,
                        setting.normalised));
  }
  uint32_t window_begin(const Track& track) const {
    return forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin;
  }
  // Earlier prompts' sums count on.
  void prompted(const Track& track) override {
    planned_end = track.size();
    for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
      for (uint32_t set = 0; set < n_sets(); ++set) {
        if (!setting.drop) kept[layer][set] = {};
        add_prompt(track, layer, set);
        plan(track, layer, set);
      }
  }
  Indices expect_prefill(const Track&, uint32_t layer, uint32_t g, uint32_t, uint32_t to) override {
    return setting.drop ? kept[layer][set_of(g)].tokens(to) : range(0, to);
  }
  // The plan was made one token ago, or when the prompt was done.
  Expected expect(const Track& track, uint32_t layer, uint32_t g) override {
    Survivors seen = kept[layer][set_of(g)];
    if (!setting.drop) seen.truncate(window_begin(track));  // there masked ones are attended
    return seen.expected();
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    const uint32_t n = track.size();
    for (const Indices& tokens : in_fact.tokens)
      CHECK((!setting.shared || tokens == in_fact.tokens[0]));
    for (uint32_t set = 0; set < n_sets(); ++set) {
      kept[layer][set].settle(in_fact.tokens[set], setting.drop ? UINT32_MAX : window_begin(track));
      if (setting.once) continue;
      add(track, layer, set, n - 1, n, in_fact.tokens[set]);
      plan(track, layer, set);
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
      for (uint32_t set = 0; set < n_sets(); ++set) {
        for (h2o::Accumulator& sum : mass[layer][set]) sum.truncate(n);
        kept[layer][set].truncate(n);
        if (unmasked) kept[layer][set] = {};
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
    setting.shared = random.one_in(3);
    setting.by_slot = random.one_in(3);
    const std::string reduce = random.one_of(std::vector<std::string>{"mean", "sum", "max"});
    setting.largest = reduce == "max";
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
    const std::string cache_keys = "gqa_reduce = '" + reduce + "'\nhead_select_mode = '" +
                                   (setting.shared ? "shared" : "separate") + "'\n";
    std::vector<std::string> met = {reduce};
    if (setting.shared) met.push_back("shared");
    if (setting.by_slot) met.push_back("slot");
    if (setting.shared && setting.largest) met.push_back("shared max");
    duel(of, {tables, cache_keys, 1e-5, {.by_slot = setting.by_slot}, met},
         std::make_unique<HeavyHitters>(of, setting), report);
  }
  conclude(report, "h2o", {.options = {"mean", "sum", "max", "shared", "shared max", "slot"}});
}

}  // namespace
