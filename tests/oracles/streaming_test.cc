// The streaming selector in the runtime against its oracle.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/streaming.h"

#include "tests/oracles/harness/survivors.h"

namespace {

using namespace kvasir::oracle;

struct Setting {
  uint32_t budget = 0;  // tokens before the window that are attended, too
  bool evict = false;
  uint32_t slice = 0;  // of a prompt, which chooses as its first query does; 0: prompts are dense
};

// Chooses tokens: the forced range is exact, and of the rest the last ones are taken. All layers
// and heads alike.
struct Streaming : Follower {
  Case of;
  Setting setting;
  Survivors kept;
  bool was_cut = false;
  Streaming(const Case& c, const Setting& s) : of(c), setting(s) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Streaming>(*this); }

  // As the query sees it that makes it n tokens.
  Survivors seen(uint32_t n, uint32_t prompt_end) const {
    Choice last;
    last.n = setting.budget;
    const Indices candidates = candidate_tokens(of.cache, n, prompt_end);
    for (const uint32_t t : kept.tokens(n)) {
      if (!holds(candidates, t)) continue;
      last.candidates.push_back(t);
      last.score.push_back(t);
    }
    Survivors out = kept;
    out.plan(forced_tokens(of.cache, n, prompt_end), last);
    return out;
  }
  void evict(uint32_t n, uint32_t prompt_end) {
    if (setting.evict) kept = seen(n, prompt_end);
  }
  void prompted(const Track& track) override { evict(track.size(), track.prompt_end()); }
  Indices expect_prefill(const Track&, uint32_t, uint32_t, uint32_t, uint32_t to) override {
    return kept.tokens(to);
  }
  Expected expect(const Track& track, uint32_t, uint32_t) override {
    const uint32_t n = track.size();
    const Survivors now = seen(n, track.prompt_end());
    // The paper's window holds the current token; with none at all the current token is attended.
    const uint32_t recent = std::max(of.cache.window_tokens, 1u) + setting.budget;
    if (!setting.evict || !was_cut)
      CHECK(now.tokens(n) == streaming::kept(of.cache.sink_tokens, recent, n));
    return now.expected();
  }
  void attended(const Track& track, uint32_t layer, const Attended&) override {
    if (layer + 1 == of.shape.n_layers) evict(track.size(), track.prompt_end());
  }
  bool chooses_in_prefill() const override { return setting.slice > 0; }
  Expected expect_slice(const Track& track, uint32_t, uint32_t, uint32_t from, uint32_t) override {
    return seen(from + 1, track.prompt_end()).expected();
  }
  // What a chunk gives up, it gives up at its end.
  void attended_slice(const Track& track, uint32_t layer, uint32_t, uint32_t to,
                      const Attended&) override {
    const bool ends = (to - track.prompt_begin()) % of.chunk_size == 0;
    if (ends && layer + 1 == of.shape.n_layers) evict(to, track.prompt_end());
  }
  Cut cut(const Track& track, uint32_t n) const override {
    return cut_of_dropped({{kept}}, n,
                          forced_tokens(of.cache, track.size(), track.prompt_end()).window_begin);
  }
  void truncated(const Track& track) override {
    kept.truncate(track.size());
    was_cut = true;
  }
};

TEST_CASE("sink, window and the last tokens before it are attended, nothing else") {
  Report report;
  for (uint32_t i = 0; i < case_count(); ++i) {
    const Case of = make_case(i, {});
    Random random(i);
    Setting setting;
    if (random.one_in(2)) setting.budget = of.budget_tokens;
    setting.evict = random.one_in(2);
    if (random.one_in(3)) setting.slice = random.one_of(std::vector<uint32_t>{7, 16, 64, 100});
    const bool by_slot = random.one_in(3);
    const std::string tables = "[selector]\nplugin = 'kvasir.streaming'\nbudget_tokens = " +
                               std::to_string(setting.budget) +
                               "\nevict = " + (setting.evict ? "true" : "false") +
                               "\nprefill_select_tokens = " + std::to_string(setting.slice) + "\n";
    std::vector<std::string> met;
    if (setting.budget > 0) met.push_back("budget_tokens");
    if (setting.evict) met.push_back("evict");
    if (setting.evict && setting.budget > 0) met.push_back("both");
    if (setting.slice > 0) met.push_back("prefill_select_tokens");
    if (by_slot) met.push_back("slot");
    duel(of, {tables, "", 0, {.by_slot = by_slot}, met}, std::make_unique<Streaming>(of, setting),
         report);
  }
  conclude(report, "streaming",
           {.options = {"budget_tokens", "evict", "both", "prefill_select_tokens", "slot"}});
}

}  // namespace
