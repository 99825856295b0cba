// Random choice in the runtime: not a copy of its generator but what a uniform draw without
// replacement must show.
// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "tests/oracles/harness/duel.h"

namespace {

using namespace kvasir::oracle;

// Sums of hypergeometric counts against what they should be.
struct Count {
  double found = 0, expected = 0, variance = 0;
  // n of `all` are drawn, and so many of the marked ones among them.
  void add(double marked_drawn, double n, double marked, double all) {
    found += marked_drawn;
    expected += n * marked / all;
    if (all > 1) variance += n * marked / all * (1 - marked / all) * (all - n) / (all - 1);
  }
  double deviation() const { return variance > 0 ? (found - expected) / std::sqrt(variance) : 0; }
};

struct Tally {
  static constexpr uint32_t kParts = 8;
  Count part[kParts];                                   // of the candidates, in order
  Count next_length, next_head, next_layer, neighbour;  // pairs of draws, of indices
  uint32_t repeats = 0;                                 // of a draw out of a million and more
};

struct Draw {
  Indices candidates, units;
};

double log2_draws(double all, double n) {
  return (std::lgamma(all + 1) - std::lgamma(n + 1) - std::lgamma(all - n + 1)) / std::log(2.0);
}

struct Uniform : Follower {
  using Where = std::tuple<uint32_t, uint32_t, uint32_t>;  // layer, kv head, length
  Case of;
  bool blocks, shared;
  std::shared_ptr<std::map<Where, Draw>> book;  // one for all forks
  Tally* tally;
  Uniform(const Case& c, bool by_block, bool one_for_all, Tally* t)
      : of(c),
        blocks(by_block),
        shared(one_for_all),
        book(std::make_shared<std::map<Where, Draw>>()),
        tally(t) {}
  std::unique_ptr<Follower> clone() const override { return std::make_unique<Uniform>(*this); }

  Indices candidates(const Track& track) const {
    return blocks ? candidate_blocks(of.cache, track.size(), track.prompt_end())
                  : candidate_tokens(of.cache, track.size(), track.prompt_end());
  }
  uint64_t budget() const { return of.budget_tokens / (blocks ? of.cache.block_size : 1); }

  Expected expect(const Track& track, uint32_t, uint32_t) override {
    const Indices from = candidates(track);
    Expected out(blocks ? forced_blocks(of.cache, track.size(), track.prompt_end())
                        : forced_tokens(of.cache, track.size(), track.prompt_end()),
                 blocks ? of.cache.block_size : 1,
                 {from, Vector(from.size(), 0.0), std::min<uint64_t>(budget(), from.size()), 0});
    out.any_subset = true;
    return out;
  }

  void attended(const Track& track, uint32_t layer, const Attended& in_fact) override {
    const Indices from = candidates(track);
    const uint64_t n = std::min<uint64_t>(budget(), from.size());
    for (uint32_t g = 0; g < in_fact.units.size(); ++g) {
      const Draw draw{from, in_fact.units[g]};
      CHECK(draw.units.size() == n);
      if (shared) CHECK(draw.units == in_fact.units[0]);
      const auto [at, fresh] = book->insert({{layer, g, track.size()}, draw});
      // A fork, and a sequence cut back, draw at the same length what was drawn there before.
      if (!fresh && at->second.candidates == from) CHECK(at->second.units == draw.units);
      if (!fresh || n == from.size() || (shared && g > 0)) continue;
      look(draw);
      compare(draw, {layer, g, track.size() - 1}, tally->next_length);
      if (layer > 0) compare(draw, {layer - 1, g, track.size()}, tally->next_layer);
      if (g > 0) compare(draw, {layer, g - 1, track.size()}, tally->next_head);
    }
  }
  void look(const Draw& draw) {
    const auto all = static_cast<double>(draw.candidates.size());
    const auto n = static_cast<double>(draw.units.size());
    std::vector<uint32_t> drawn(Tally::kParts), there(Tally::kParts);
    for (size_t i = 0; i < draw.candidates.size(); ++i) {
      const size_t part = i * Tally::kParts / draw.candidates.size();
      ++there[part];
      drawn[part] += holds(draw.units, draw.candidates[i]) ? 1 : 0;
    }
    for (uint32_t i = 0; i < Tally::kParts; ++i) tally->part[i].add(drawn[i], n, there[i], all);
    // Whether the index after a drawn one is drawn, too: n - 1 of the others are.
    for (size_t i = 0; i + 1 < draw.candidates.size(); ++i)
      if (holds(draw.units, draw.candidates[i]))
        tally->neighbour.add(holds(draw.units, draw.candidates[i + 1]), n - 1, 1, all - 1);
  }
  // Given how many of the common candidates either draw took, how many did both?
  void compare(const Draw& draw, const Where& where, Count& count) {
    const auto other = book->find(where);
    if (other == book->end()) return;
    const Indices common = both(draw.candidates, other->second.candidates);
    if (common.size() < 2) return;
    const Indices one = both(draw.units, common), two = both(other->second.units, common);
    const auto all = static_cast<double>(common.size());
    count.add(static_cast<double>(both(one, two).size()), static_cast<double>(one.size()),
              static_cast<double>(two.size()), all);
    if (one == two && log2_draws(all, static_cast<double>(one.size())) > 20) ++tally->repeats;
  }
  static Indices both(const Indices& a, const Indices& b) { return without(a, without(a, b)); }
};

std::string tables(uint32_t budget_tokens, bool blocks) {
  return "[selector]\nplugin = 'kvasir.random'\nbudget_tokens = " + std::to_string(budget_tokens) +
         "\nunit = '" + (blocks ? "block" : "token") + "'\n";
}

TEST_CASE("every candidate is as likely, whatever was drawn elsewhere") {
  Report report;
  Tally tally;
  for (uint32_t i = 0; i < case_count(); ++i) {
    CaseOptions options;
    options.n_layers = 4;
    Case of = make_case(i, options);
    Random random(i);
    const bool blocks = random.one_in(2), shared = random.one_in(3);
    if (blocks) of.budget_tokens += of.cache.block_size;
    duel(of,
         {tables(of.budget_tokens, blocks),
          std::string("head_select_mode = '") + (shared ? "shared" : "separate") + "'\n", 0},
         std::make_unique<Uniform>(of, blocks, shared, &tally), report);
  }
  const auto near_zero = [](const Count& count, const std::string& of) {
    MESSAGE("random: ", of, ": ", count.found, " found, ", count.expected, " expected, ",
            count.deviation(), " standard deviations");
    CHECK(std::abs(count.deviation()) < 4.5);
  };
  for (const Count& part : tally.part) near_zero(part, "an eighth of the candidates");
  near_zero(tally.next_length, "two lengths");
  near_zero(tally.next_layer, "two layers");
  near_zero(tally.next_head, "two kv heads");
  near_zero(tally.neighbour, "two indices in a row");
  CHECK(tally.repeats == 0);
  conclude(report, "random");
}

TEST_CASE("the draw follows the seed, not chunks or companions") {
  using Kind = Action::Kind;
  Case of = make_case(1, {});
  of.cache = {16, 4, 20, false, 0};
  of.budget_tokens = 128;  // 8 of 37 blocks: 39 million draws
  of.context = 640;
  of.chunk_size = 640;
  of.script = {{Kind::kPrompt, 0, 640}, {Kind::kDecode, 0, 20}};
  Report report;
  Tally ignored;
  const auto book_of = [&](const Case& one, bool blocks) {
    auto follower = std::make_unique<Uniform>(one, blocks, false, &ignored);
    const auto book = follower->book;
    duel(one, {tables(one.budget_tokens, blocks), "", 0}, std::move(follower), report);
    std::map<Uniform::Where, Indices> out;
    for (const auto& [where, draw] : *book) out[where] = draw.units;
    return out;
  };
  for (const bool blocks : {false, true}) {
    const auto drawn = book_of(of, blocks);
    REQUIRE(drawn.size() == 20u * of.shape.n_layers * of.shape.heads.n_kv_heads);
    CHECK(book_of(of, blocks) == drawn);
    Case chunked = of;
    chunked.chunk_size = 70;
    CHECK(book_of(chunked, blocks) == drawn);
    Case in_a_batch = of;
    in_a_batch.script.insert(in_a_batch.script.begin() + 1, {Kind::kFork, 0, 0});
    CHECK(book_of(in_a_batch, blocks) == drawn);
    Case reseeded = of;
    reseeded.seed += 1;  // other keys and queries, too: they are not looked at
    size_t same = 0;     // in any layer
    for (const auto& [where, units] : book_of(reseeded, blocks))
      for (uint32_t layer = 0; layer < of.shape.n_layers; ++layer)
        same += drawn.at({layer, std::get<1>(where), std::get<2>(where)}) == units;
    CHECK(same == 0);
  }
}

}  // namespace
