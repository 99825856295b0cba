// KTransformers' long-context mode as a whole in the runtime against its oracle: preselection, most
// attended keys, the best blocks, and choices that serve several tokens and layers.
// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "tests/oracles/ktransformers_followers.h"

namespace {

using namespace kvasir::oracle;
using namespace kvasir::oracle::ktransformers;

// What a leading layer attends to until it chooses again: blocks per kv head, beside the forced
// ones of the moment when it chose.
struct Chosen {
  Forced forced;
  std::vector<Indices> blocks;
  bool is_all = false;     // of what can be reached: the budget covers it
  bool is_dense = false;   // and nothing is out of reach
  bool is_unsure = false;  // what can be reached hangs on near-ties
  uint32_t made_at = 0;    // tokens since the prompt
};

struct ChainTally {
  uint64_t chosen = 0, unsure = 0, reused = 0, followed = 0;  // steps of layers, of kv heads each
};

// Blocks in reach by the prompt's end, the best of them by their most attended keys. A choice
// serves `token_step` tokens and `layer_step` layers, each of them as far as it reaches.
struct Chain : Follower {
  Case of;
  Preselected first;
  Dynamic second;
  uint32_t token_step, layer_step;
  ChainTally* tally;
  std::vector<std::optional<Chosen>> chosen;  // [layer], of leading layers
  Chain(Preselected a, Dynamic b, uint32_t tokens, uint32_t layers, ChainTally* t)
      : of(b.of),
        first(std::move(a)),
        second(std::move(b)),
        token_step(tokens),
        layer_step(layers),
        tally(t),
        chosen(of.shape.n_layers) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Chain>(*this); }

  void prompted(const Track& track) override {
    const std::vector<Vectors> votes = importance(track, first.last_queries);
    first.vote(track, votes);
    second.vote(track, votes);
    chosen.assign(chosen.size(), std::nullopt);
  }
  // A choice of a token that stays is what the next one would have reused.
  void truncated(const Track& track) override {
    first.truncated(track);
    second.truncated(track);
    for (auto& layer : chosen)
      if (layer && layer->made_at >= track.size() - track.prompt_end()) layer.reset();
  }

  // The preselection bound something.
  bool is_restricted() const {
    const uint32_t end = first.planned_end;
    return !first.plan.empty() && first.choices_were_made(candidate_blocks(of.cache, end, end));
  }
  Indices reachable(uint32_t layer, uint32_t g, const Indices& candidates) const {
    if (!is_restricted()) return candidates;
    const uint32_t end = first.planned_end;
    const uint32_t bound_end = forced_blocks(of.cache, end, end).window_begin / of.cache.block_size;
    const Indices kept = first.plan[layer][g].chosen();
    Indices out;
    for (const uint32_t block : candidates)
      if (block >= bound_end || holds(kept, block)) out.push_back(block);
    return out;
  }
  bool is_unsure_at(uint32_t layer, uint32_t g) const {
    if (!is_restricted()) return false;
    const bool is_ranked = !first.share_last || layer + 1 == of.shape.n_layers;
    return first.unsure[layer][g] || (is_ranked && is_unsure(first.plan[layer][g]));
  }
  bool is_due(const Track& track, uint32_t layer) const {
    const std::optional<Chosen>& last = chosen[layer];
    if (!last || last->is_dense || token_step == 0) return true;
    const uint32_t at = track.size() - 1 - track.prompt_end();
    return at % token_step == 0 || at - last->made_at >= token_step;
  }
  uint32_t leader(uint32_t layer) const { return layer - layer % layer_step; }
  Indices blocks_between(const Forced& forced) const {
    return range(forced.sink_end / of.cache.block_size, forced.window_begin / of.cache.block_size);
  }

  Chosen fresh(const Track& track, uint32_t layer) const {
    Chosen out;
    out.forced = forced_blocks(of.cache, track.size(), track.prompt_end());
    out.made_at = track.size() - 1 - track.prompt_end();
    size_t most = 0;
    for (uint32_t g = 0; g < of.shape.heads.n_kv_heads; ++g) {
      most = std::max(most, reachable(layer, g, blocks_between(out.forced)).size());
      out.is_unsure = out.is_unsure || is_unsure_at(layer, g);
    }
    out.is_all = most <= second.budget();
    out.is_dense = out.is_all && !is_restricted();
    return out;
  }
  // These blocks and no others.
  Expected exactly(const Forced& forced, const Indices& blocks) const {
    Choice all{blocks_between(forced), {}, blocks.size(), 1};
    for (const uint32_t block : all.candidates) all.score.push_back(holds(blocks, block) ? 1 : 0);
    return {forced, of.cache.block_size, all};
  }
  Expected any(const Forced& forced) const {
    Expected out = exactly(forced, {});
    out.any_subset = true;
    return out;
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t g) override {
    if (layer != leader(layer)) {
      const Chosen& lead = *chosen[leader(layer)];
      if (is_unsure_at(layer, g)) return any(lead.forced);
      Indices blocks = reachable(layer, g, blocks_between(lead.forced));
      if (!lead.is_all) blocks = without(blocks, without(blocks, lead.blocks[g]));
      return exactly(lead.forced, blocks);
    }
    if (!is_due(track, layer)) return exactly(chosen[layer]->forced, chosen[layer]->blocks[g]);
    const Chosen now = fresh(track, layer);
    if (now.is_unsure) return any(now.forced);
    const Indices blocks = reachable(layer, g, blocks_between(now.forced));
    if (now.is_all) return exactly(now.forced, blocks);
    return {now.forced, of.cache.block_size, second.choose(track, layer, g, blocks)};
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    if (layer != leader(layer)) {
      tally->followed += chosen[leader(layer)]->is_all ? 0 : 1;
      return;
    }
    if (!is_due(track, layer)) {
      tally->reused += chosen[layer]->is_all ? 0 : 1;
      return;
    }
    chosen[layer] = fresh(track, layer);
    chosen[layer]->blocks = in_fact.units;
    tally->chosen += chosen[layer]->is_all ? 0 : 1;
    tally->unsure += chosen[layer]->is_unsure ? 1 : 0;
  }
};

TEST_CASE("preselected blocks are chosen from by their most attended keys, for tokens and layers") {
  Report report;
  Tally plans;
  ChainTally tally;
  CaseOptions options;
  options.n_layers = 3;
  const std::vector<std::string> combines = {"sum", "mean", "max"};
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case wide = make_case(i, options);
    Random random(i);
    wide.shape.one_zero_key_in = 0;  // equal votes
    wide.budget_tokens += wide.cache.block_size;
    Case of = wide;
    const uint32_t first_blocks = wide.budget_tokens / wide.cache.block_size;
    const uint32_t second_blocks = 1 + random.below(std::max(1u, first_blocks - 1));
    of.budget_tokens = second_blocks * of.cache.block_size;
    const uint32_t w = random.one_of(std::vector<uint32_t>{1, 8, 32, 128});
    const uint32_t token_step = random.one_of(std::vector<uint32_t>{0, 1, 2, 3, 5});
    const uint32_t layer_step = 1 + random.below(3);
    const uint32_t n_keys = 1 + random.below(3), combine = random.below(3);
    // Heads that share the last choice share the first one, too.
    const bool shared = random.one_in(2), shared_first = shared || random.one_in(2);
    const bool last = !random.one_in(3);
    const auto number = [](uint32_t x) { return std::to_string(x) + "\n"; };
    const auto mode = [](bool is_shared) {
      return std::string("head_select_mode = '") + (is_shared ? "shared" : "separate") + "'\n";
    };
    const std::string tables =
        "[[selector]]\nplugin = 'kvasir.preselect'\npreselect_block_count = " +
        number(first_blocks) + "window_size = " + number(w) + mode(shared_first) +
        "union_with_last_layer = " + (last ? "true" : "false") +
        "\n[[selector]]\nplugin = 'kvasir.block_topk'\nsecond_block_count = " +
        number(second_blocks) + "[representative]\nplugin = 'kvasir.dynamic'\ndtype = 'f32'\n" +
        "representative_num = " + number(n_keys) + "combine = '" + combines[combine] +
        "'\nlast_queries = " + number(w);
    std::vector<std::string> met;
    if (token_step > 1) met.push_back("token_step");
    if (layer_step > 1) met.push_back("layer_step");
    if (token_step > 1 && layer_step > 1) met.push_back("both steps");
    if (last) met.push_back("union_with_last_layer");
    met.push_back(shared ? "shared" : "separate");
    duel(
        of,
        {tables,
         "token_step = " + number(token_step) + "layer_step = " + number(layer_step) + mode(shared),
         1e-5,
         {},
         met},
        std::make_unique<Chain>(
            Preselected(wide, w, wide.cache.block_size / 2, shared_first, last, &plans),
            Dynamic(of, w, n_keys, static_cast<Combine>(combine), shared), token_step, layer_step,
            &tally),
        report);
  }
  MESSAGE("ktransformers: ", tally.chosen, " choices of a layer, ", tally.reused, " reused, ",
          tally.followed, " followed; ", tally.unsure, " hang on near-ties");
  CHECK(tally.unsure * 50 <= tally.chosen);
  CHECK((are_cases_reduced() || std::min({tally.chosen, tally.reused, tally.followed}) > 1000));
  conclude(report, "ktransformers",
           {.options = {"token_step", "layer_step", "both steps", "union_with_last_layer", "shared",
                        "separate"}});
}

}  // namespace
