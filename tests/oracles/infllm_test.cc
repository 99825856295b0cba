// InfLLM in the runtime against its oracle: what each slice of a prompt and each token chooses, by
// tokens that were attended to while they were near.
// SPDX-License-Identifier: Apache-2.0
#include "tests/oracles/infllm.h"

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

struct Options {
  uint32_t topk = 4, slice = 512, repr_topk = 4;
  bool shared = true, bypass = false;
};

struct Tally {
  uint64_t choices = 0, unsure = 0;
};

struct Local : Follower {
  Case of;
  Options options;
  Tally* tally;
  struct Layer {
    uint32_t n_final = 0;                                   // blocks that have left the window
    std::vector<infllm::LocalMass> mass;                    // [q_head]
    std::vector<std::map<uint32_t, infllm::BlockKey>> key;  // [q_head][block]
  };
  std::vector<Layer> layers;
  Local(const Case& c, const Options& o, Tally* t) : of(c), options(o), tally(t) {
    layers.resize(c.shape.n_layers);
    for (Layer& layer : layers) {
      layer.mass.resize(c.shape.heads.n_q_heads);
      layer.key.resize(c.shape.heads.n_q_heads);
    }
  }
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Local>(*this); }
  bool chooses_in_prefill() const override { return true; }

  // The window and the candidates of a slice are those of its first query.
  Forced forced(uint32_t from) const { return forced_blocks(of.cache, from + 1, 0); }
  Indices candidates(uint32_t from) const { return candidate_blocks(of.cache, from + 1, 0); }
  bool is_dense(uint32_t from) const {
    return options.bypass && candidates(from).size() <= options.topk;
  }
  uint32_t n_local() const { return of.cache.window_tokens; }

  Expected expect_slice(const Track&, uint32_t, uint32_t, uint32_t from, uint32_t to) override {
    CHECK(to - from <= options.slice);
    const Indices blocks = candidates(from);
    Expected out(
        forced(from), of.cache.block_size,
        {blocks, Vector(blocks.size(), 0.0), std::min<uint64_t>(options.topk, blocks.size()), 0});
    out.any_subset = true;
    return out;
  }
  Expected expect(const Track& track, uint32_t layer, uint32_t kv_head) override {
    return expect_slice(track, layer, kv_head, track.size() - 1, track.size());
  }
  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    attended_slice(track, layer, track.size() - 1, track.size(), in_fact);
  }

  void attended_slice(const Track& track, uint32_t layer, uint32_t from, uint32_t to,
                      const Attended& in_fact) override {
    const Heads& heads = of.shape.heads;
    for (uint32_t g = 0; g < heads.n_kv_heads; ++g) {
      if (options.shared) CHECK(in_fact.units[g] == in_fact.units[0]);
      if (g == 0 || !options.shared) judge_choice(track, layer, g, from, to, in_fact.units[g]);
    }
    for (uint32_t h = 0; h < heads.n_q_heads; ++h)
      collect(track, layer, h, from, to, in_fact.tokens[heads.kv_head(h)]);
    retire(track, layer, forced(to).window_begin / of.cache.block_size);
  }

  // The mean of the slice's queries against the keys of the blocks.
  void judge_choice(const Track& track, uint32_t layer, uint32_t g, uint32_t from, uint32_t to,
                    const Indices& actual) {
    const Indices blocks = candidates(from);
    CHECK(actual.size() == std::min<size_t>(options.topk, blocks.size()));
    if (blocks.size() <= options.topk) return;
    const Heads& heads = of.shape.heads;
    Vector score(blocks.size(), 0.0), slack(blocks.size(), 0.0);
    for (uint32_t h = 0; h < heads.n_q_heads; ++h) {
      if (!options.shared && heads.kv_head(h) != g) continue;
      Vector mean(heads.head_dim, 0.0);
      for (uint32_t pos = from; pos < to; ++pos) {
        const Vector q = track.q_at(layer, h, pos, n_local() - 1);
        for (size_t d = 0; d < mean.size(); ++d) mean[d] += q[d] / (to - from);
      }
      for (size_t i = 0; i < blocks.size(); ++i) {
        const infllm::BlockKey& key = layers[layer].key[h].at(blocks[i]);
        const double one = dot(mean, key.key), other = dot(mean, key.other);
        score[i] += one;
        slack[i] += std::abs(one - other) + 1e-5 * std::max(std::abs(one), 0.1);
      }
    }
    const auto at = [&](uint32_t block) { return block - blocks[0]; };
    double most_lost = -kInfinity, least_kept = kInfinity, slack_lost = 0, slack_kept = 0;
    for (const uint32_t block : without(blocks, actual))
      if (score[at(block)] - slack[at(block)] > most_lost - slack_lost)
        most_lost = score[at(block)], slack_lost = slack[at(block)];
    for (const uint32_t block : actual)
      if (score[at(block)] + slack[at(block)] < least_kept + slack_kept)
        least_kept = score[at(block)], slack_kept = slack[at(block)];
    ++tally->choices;
    tally->unsure += most_lost + slack_lost >= least_kept - slack_kept ? 1 : 0;
    CHECK_MESSAGE(most_lost - slack_lost <= least_kept + slack_kept, of.text(), "; layer ", layer,
                  ", queries ", from, " to ", to);
  }

  // Near tokens at their true positions, far ones all at the end of the window, in one softmax.
  void collect(const Track& track, uint32_t layer, uint32_t h, uint32_t from, uint32_t to,
               const Indices& tokens) {
    const uint32_t g = of.shape.heads.kv_head(h), window = forced(from).window_begin;
    const Vectors &k = track.k(layer, g), &raw = track.k_raw(layer, g);
    for (uint32_t pos = from; pos < to; ++pos) {
      const Vector q = track.q(layer, h, pos), far = track.q_at(layer, h, pos, n_local() - 1);
      Indices seen;
      Vector logit;
      for (const uint32_t t : tokens) {
        if (t > pos) continue;
        seen.push_back(t);
        const bool near = is_dense(from) || infllm::is_near(pos, t, n_local());
        logit.push_back(track.scale() * (near ? dot(q, k[t]) : dot(far, raw[t])));
      }
      Vector p = softmax(logit);
      const auto first = std::lower_bound(seen.begin(), seen.end(), window) - seen.begin();
      layers[layer].mass[h].add(Indices(seen.begin() + first, seen.end()),
                                Vector(p.begin() + first, p.end()));
    }
  }

  // Blocks before `end` have left the window: their tokens collect no more.
  void retire(const Track& track, uint32_t layer, uint32_t end) {
    Layer& state = layers[layer];
    const uint32_t b = of.cache.block_size;
    for (; state.n_final < end; ++state.n_final)
      for (uint32_t h = 0; h < of.shape.heads.n_q_heads; ++h)
        state.key[h][state.n_final] =
            infllm::block_key(state.mass[h], track.k_raw(layer, of.shape.heads.kv_head(h)),
                              state.n_final, b, options.repr_topk);
  }

  // What a block was represented by stands, though it may be in the window again. The block that is
  // cut collects anew.
  void truncated(const Track& track) override {
    const uint32_t cut = track.size() / of.cache.block_size;
    for (Layer& state : layers) {
      state.n_final = std::min(state.n_final, cut);
      for (infllm::LocalMass& mass : state.mass) mass.forget(cut * of.cache.block_size);
    }
  }
};

TEST_CASE("slices and tokens choose by what was attended to while it was near") {
  Report report;
  Tally tally;
  for (uint32_t i = 0; i < case_count(); ++i) {
    Case of = make_case(i, {});
    Random random(i);
    of.cache.window_tokens = std::max(of.cache.window_tokens, 1u);
    Options options;
    options.topk = 1 + random.below(3);
    options.slice = random.one_of(std::vector<uint32_t>{16, 50, 128, 512});
    options.repr_topk = 1 + random.below(4);
    options.shared = !random.one_in(3);
    options.bypass = random.one_in(3);
    const auto number = [](uint32_t x) { return std::to_string(x) + "\n"; };
    const Strategy strategy{
        "[selector]\nplugin = 'kvasir.infllm'\ntopk = " + number(options.topk) +
            "exc_block_size = " + number(options.slice) +
            "[representative]\nplugin = 'kvasir.dynamic'\nmass = 'window'\ncombine = 'mean'\n"
            "dtype = 'f32'\nrepr_topk = " +
            number(options.repr_topk),
        std::string("head_select_mode = '") + (options.shared ? "shared" : "separate") +
            "'\nbypass = " + (options.bypass ? "true" : "false") + "\n",
        1e-5,
        {.constant_distance = of.cache.window_tokens}};
    duel(of, strategy, std::make_unique<Local>(of, options, &tally), report);
  }
  MESSAGE("infllm: ", tally.choices, " choices, ", tally.unsure, " of them near-ties");
  CHECK(tally.unsure * 50 <= tally.choices);
  conclude(report, "infllm");
}

}  // namespace
