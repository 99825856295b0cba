// The oracles against values worked out by hand.
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/oracles/block_topk.h"
#include "tests/oracles/cache_layout.h"
#include "tests/oracles/duoattention.h"
#include "tests/oracles/exact.h"
#include "tests/oracles/h2o.h"
#include "tests/oracles/infinigen.h"
#include "tests/oracles/infllm.h"
#include "tests/oracles/ktransformers.h"
#include "tests/oracles/magicpig.h"
#include "tests/oracles/pyramidkv.h"
#include "tests/oracles/representative.h"
#include "tests/oracles/snapkv.h"
#include "tests/oracles/twilight.h"

namespace {

using namespace kvasir::oracle;
using doctest::Approx;

bool near(const Vector& a, const Vector& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = std::abs(a[i] - b[i]) < 1e-12;
  return same;
}

TEST_CASE("the bound of a page: tight, and above every product") {
  const Vectors page = {{1, -1}, {-2, 3}};
  CHECK(representative::bound({0.5, -1}, page) == 1.5);
  CHECK(dot({0.5, -1}, page[0]) == 1.5);
  CHECK(dot({0.5, -1}, page[1]) == -4.0);
  CHECK(representative::bound({-1, -1}, page) == 3.0);
  CHECK(representative::highest({{-1, -5}, {-2, -3}}) == Vector{-1, -3});  // not clamped at zero
}

TEST_CASE("merging by log-sum-exp") {
  const Partial both = merge({{1.0}, std::log(2.0)}, {{5.0}, std::log(6.0)});
  CHECK(both.lse == Approx(std::log(8.0)));
  CHECK(both.o[0] == Approx(4.0));
  const Partial one = merge({{0.0}, -kInfinity}, {{7.0}, std::log(3.0)});
  CHECK(one.lse == Approx(std::log(3.0)));
  CHECK(one.o[0] == 7.0);
  const Partial none = merge({{0.0}, -kInfinity}, {{0.0}, -kInfinity});
  CHECK(none.lse == -kInfinity);
  CHECK(none.o[0] == 0.0);
}

TEST_CASE("large logits do not overflow") {
  const Partial out = attend({200, 201}, {{0.0}, {1.0}}, 1);
  CHECK(out.lse == Approx(201.3132617));
  CHECK(out.o[0] == Approx(0.7310586));
}

TEST_CASE("PyramidKV's budgets") {
  const auto long_prompt = pyramidkv::budgets(32, 2048, 8, 32768);
  CHECK(long_prompt[0] == 3978);
  CHECK(long_prompt[1] == 3853);
  CHECK(long_prompt[15] == 2103);
  CHECK(long_prompt[31] == 103);
  CHECK(std::accumulate(long_prompt.begin(), long_prompt.end(), 0u) == 65296);
  const auto small = pyramidkv::budgets(32, 512, 8, 8192);
  CHECK(small[0] == 983);
  CHECK(small[31] == 53);
  const auto tiny = pyramidkv::budgets(32, 128, 8, 8192);
  CHECK(std::vector<uint32_t>{tiny[0], tiny[1], tiny[15], tiny[31]} ==
        std::vector<uint32_t>{234, 227, 129, 17});
  CHECK(pyramidkv::budgets(32, 2048, 8, 3000) == std::vector<uint32_t>(32, 2040));
  CHECK(pyramidkv::budgets(4, 2048, 8, 100) == std::vector<uint32_t>(4, 92));
}

TEST_CASE("KTransformers' preselection: a quarter block of its neighbours on each side") {
  const Vector importance = {0, 0, 0, 8, 1, 1, 1, 1, 4, 0, 0, 0};
  CHECK(near(ktransformers::pooled(importance, 4, 0, 3), {1.5, 16.0 / 6, 5.0 / 6}));
  CHECK(near(ktransformers::pooled(importance, 4, 1, 1), {4.0 / 6}));  // others count as zeros
}

TEST_CASE("KTransformers' preselection: the last layer's best reach the others") {
  std::vector<Indices> tables = {{9, 8, 7, 6}, {1, 9, 3, 4}};
  ktransformers::share_last_layer(tables);
  // Rank 1 (9) is there; rank 2 (3) takes the place before the last, rank 3 (4) the one before it;
  // rank 0 is not shared.
  CHECK(tables[0] == Indices{9, 4, 3, 6});
  CHECK(tables[1] == Indices{1, 9, 3, 4});
}

TEST_CASE("KTransformers' lengths: 128K tokens, and a context that fits") {
  const auto selected = block_topk::lengths(131073, 128, 1, 32, 96);
  CHECK_FALSE(selected.everything);
  CHECK(selected.candidates == 991);
  CHECK(selected.blocks == 130);
  CHECK(selected.tokens == 16513);
  CHECK(block_topk::lengths(16512, 128, 1, 32, 96).everything);
  CacheLayout cache{128, 128, 4096, false, 0};
  CHECK(candidate_blocks(cache, 131073, 131073) == range(1, 992));
}

TEST_CASE("ties go to the lower index, NaN comes last") {
  CHECK(top_k({0, 0, 0, 0, 0, 3, 0, 0, 0, 3}, 1) == Indices{5});
  CHECK(top_k({NAN, 1, -kInfinity}, 2) == Indices{1, 2});
  CHECK(top_k({1, 2}, 5) == Indices{0, 1});
  CHECK(top_k({}, 3).empty());
}

TEST_CASE("scores of a group: sum, maximum, each head for itself") {
  const Vectors scores = {{1, 0}, {0, 3}};
  CHECK(top_k(reduce(scores, Reduce::kSum), 1) == Indices{1});
  CHECK(top_k(reduce(scores, Reduce::kMax), 1) == Indices{1});
  CHECK(unite(top_k(scores[0], 1), top_k(scores[1], 1)) == Indices{0, 1});
  CHECK(near(reduce({{0, 0}, {0, std::log(3.0)}}, Reduce::kSoftmaxSum), {0.75, 1.25}));
}

TEST_CASE("StreamingLLM: 4 sinks and 8 recent of 20") {
  const Indices kept = streaming::kept(4, 8, 20);
  CHECK(kept == unite(range(0, 4), range(12, 20)));
  CHECK(streaming::slot_of_query(kept) == 11);
  CHECK(streaming::kept(4, 8, 12) == range(0, 12));
  CHECK(duoattention::attended(false, 4, 8, 20) == kept);
  CHECK(duoattention::attended(true, 4, 8, 20) == range(0, 20));
}

TEST_CASE("SnapKV's pooling: zeros count in the mean, ties of the maximum go to the first") {
  CHECK(near(snapkv::pool({0, 0, 3, 0}, 3, snapkv::Pooling::kMean), {0, 1, 1, 1}));
  const Vector highest = snapkv::pool({0, 0, 3, 0}, 3, snapkv::Pooling::kMax);
  CHECK(near(highest, {0, 3, 3, 3}));
  CHECK(top_k(highest, 1) == Indices{1});
  CHECK(near(snapkv::pool({-1, -2}, 3, snapkv::Pooling::kMax), {-1, -1}));
}

TEST_CASE("the most attended token of a block: of equals the first") {
  const Vectors keys = {{0}, {1}, {2}, {3}};
  CHECK(representative::dynamic(keys, {0.1, 0.4, 0.4, 0.1}, 1) == Vectors{{1}});
  CHECK(representative::dynamic(keys, {0.1, 0.4, 0.4, 0.3}, 3) == Vectors{{1}, {2}, {3}});
  CHECK(representative::fixed(keys, 2) == Vectors{{0}, {2}});
  CHECK(representative::combined({2}, keys, representative::Combine::kMean) == 3.0);
}

TEST_CASE("SnapKV's vote is causal inside the window") {
  // Equal keys: the query at position 2 spreads over 3 tokens, the one at 3 over 4.
  const Vector vote = snapkv::vote({{1}, {1}}, {{0}, {0}, {0}, {0}}, 1.0);
  CHECK(near(vote, {7.0 / 12, 7.0 / 12, 7.0 / 12, 0.25}));
}

TEST_CASE("H2O: sums over queries, the mean over a group, and per query that saw the token") {
  h2o::Accumulator mass;
  mass.add(0, {0}, {{1.0}, {1.0}});
  mass.add(1, {0, 1}, {{0.25, 0.75}, {0.75, 0.25}});
  CHECK(mass.of(0) == 1.5);
  CHECK(mass.of(1) == 0.5);
  CHECK(mass.per_query(0) == 0.75);
  CHECK(mass.per_query(1) == 0.5);
  mass.add(2, {0, 1, 2}, {{0, 1, 0}, {0, 1, 0}});
  CHECK(h2o::keep({mass}, {0, 1, 2}, 3, 1, 1, false).chosen() == Indices{0});  // 1.5 each
  CHECK(h2o::keep({mass}, {0, 1, 2}, 3, 1, 1, true).chosen() == Indices{1});
  CHECK(h2o::keep({mass}, {0, 1, 2}, 3, 1, 0, true).chosen().empty());
  h2o::Accumulator other;  // of a query head that attends to another token
  other.add(2, {0, 1, 2}, {{0, 2, 0}});
  CHECK(h2o::keep({mass, other}, {0, 1, 2}, 3, 1, 1, false).chosen() == Indices{1});
  CHECK(h2o::ratio_budget(0.1, 1029) == 102);
  CHECK(tova::keep({0, 1}, {{0.9, 0.1}, {0.2, 0.8}}, 1).chosen() == Indices{0});
}

TEST_CASE("InfiniGen: one count for all heads, columns by the magnitude of queries") {
  infinigen::Rehearsal of;
  of.alpha = 1.0;
  of.logit = {{0, 5, 4.5, 1}, {9, 0, 0, 8.001}};  // two within reach in each head
  CHECK(infinigen::common_count(of) == 2);
  of.logit[1][3] = 8.0;  // exactly alpha away: out
  CHECK(infinigen::common_count(of) == 1);
  of.cap = 1;
  CHECK(infinigen::choose(of, range(0, 4), 1, 1).chosen() == Indices{0});
  of.alpha = 0;
  CHECK(infinigen::common_count(of) == 1);
  CHECK(infinigen::columns({{1, -3, 2, 0}, {-4, 0, 0, 0}}, {}, 2).chosen() == Indices{0, 1});
  using infinigen::ColumnScore;
  CHECK(infinigen::columns_by(ColumnScore::kQuery, {3, 1, 2}, {0, 5, 1}, 1) == Indices{0});
  CHECK(infinigen::columns_by(ColumnScore::kQueryAndKey, {3, 1, 2}, {0, 5, 1}, 1) == Indices{1});
  CHECK(infinigen::columns_by(ColumnScore::kUnion, {3, 1, 2}, {0, 5, 1}, 1) == Indices{0, 1});
  CHECK(infinigen::part({127, 9, -0.6}, {}, {0, 2}, true) == Vector{127, -1});
  CHECK(infinigen::projected({3, 4}, {{0, 1}, {1, 0}}, {0}) == Vector{0, 4});
  CHECK(infinigen::column_count(0.2, 128) == 25);
  CHECK(infinigen::column_count(0.3, 128) == 38);
}

TEST_CASE("MagicPIG: two of the tables must agree; published inclusion probabilities") {
  magicpig::Hash hash{1, 3, {{1, 0}, {0, 1}, {1, 1}}};
  CHECK(magicpig::codes(hash, {1, -2}) == Indices{1, 0, 0});
  CHECK(magicpig::sampled(hash, {1, 1}, {{1, -0.5}, {-2, 1}, {1, 1}}, {0, 1, 2}) == Indices{0, 2});
  CHECK(magicpig::inclusion(0.0, 10, 150) == Approx(0.0097).epsilon(0.01));
  CHECK(magicpig::inclusion(0.4, 10, 150) == Approx(0.443).epsilon(0.002));
  CHECK(magicpig::inclusion(0.6, 8, 75) == Approx(0.947).epsilon(0.002));
  CHECK(magicpig::inclusion(0.2, 11, 300) == Approx(0.106).epsilon(0.01));
  CHECK(magicpig::inclusion(1.0, 10, 150) == 1.0);
  CHECK(magicpig::cosine({0, 0}, {1, 0}) == 0.0);
}

TEST_CASE("InfLLM: tokens most attended stand for a block, one set for all heads") {
  infllm::LocalMass mass;
  mass.add({4, 5, 6}, {0.125, 0.5, 0.375});
  mass.add({5, 6, 7}, {0.125, 0.25, 0.875});
  CHECK(infllm::representatives(mass, 1, 4, 2).chosen() == Indices{5, 7});  // 5 and 6 are equal
  CHECK(infllm::block_key({{1}, {3}, {5}}, {0, 2}) == Vector{3});
  const Vectors q = {{1}, {1}};
  CHECK(infllm::retrieve({3, 4}, q, {{{2}, {0}}, {{0}, {3}}}, 1).chosen() == Indices{4});
  CHECK(infllm::is_near(10, 7, 4));
  CHECK_FALSE(infllm::is_near(10, 6, 4));
}

TEST_CASE("top-p: the smallest set, largest first") {
  CHECK(top_p({0.1, 0.5, 0.4}, 0.9) == Indices{1, 2});
  CHECK(top_p({0.1, 0.5, 0.4}, 0.91) == range(0, 3));
  CHECK(top_p({0.5, 0.5}, 0.5) == Indices{0});
  CHECK(top_p({0.5, 0.5}, 0.0).empty());
  const auto set = exact::smallest_set({0, 1, 2}, {0.1, 0.5, 0.4}, 0.9, 1e-6);
  CHECK(set.lower == 2);
  CHECK(set.upper == 3);
}

TEST_CASE("Twilight: four bits, shares, and what single precision leaves open") {
  // A range of 15: whole numbers are exact, 7.4 is taken for 7; 7.5 may be 7 or 8.
  const auto exact = twilight::estimate({1, 1, 1}, {0, 15, 7.4}, 0.5);
  CHECK(exact.low == doctest::Approx(11).epsilon(1e-5));
  CHECK(exact.high - exact.low < 1e-4);
  const auto open = twilight::estimate({1, 1, 1}, {0, 15, 7.5}, 0.5);
  CHECK(open.low == doctest::Approx(11).epsilon(1e-5));
  CHECK(open.high == doctest::Approx(11.5).epsilon(1e-5));
  CHECK(twilight::estimate({1, 2}, {0, 0}, 1.0).exact);
  const auto known = [](double share) {
    return twilight::Logit{std::log(share), std::log(share), true};
  };
  const twilight::Kept two =
      twilight::smallest_set({known(0.25), known(0.25), known(0.25), known(0.25)}, 0.4);
  CHECK(two.sure == Indices{0, 1});
  CHECK(two.possible == Indices{0, 1});
  // The first or the second is the larger one, and alone enough; the third is neither.
  const twilight::Kept one =
      twilight::smallest_set({{0.0, 1.0, false}, {0.5, 0.5, false}, {-9.0, -9.0, false}}, 0.3);
  CHECK(one.sure.empty());
  CHECK(one.possible == Indices{0, 1});
}

TEST_CASE("exact mass: tokens and blocks") {
  const Vectors mass = {{0.1, 0.2, 0.3, 0.4}, {0.4, 0.3, 0.2, 0.1}};
  CHECK(exact::best_tokens({0, 1, 2, 3}, mass, {1, 2}, 1).chosen() == Indices{1});
  CHECK(exact::best_blocks({0, 1, 2, 3}, {{0.1, 0.2, 0.3, 0.4}}, {0, 1}, 2, 1).chosen() ==
        Indices{1});
}

TEST_CASE("the forced range: whole blocks outward, the current token always") {
  const CacheLayout cache{16, 4, 20, false, 0};
  CHECK(candidate_blocks(cache, 100, 100) == range(1, 5));  // window from 80
  CHECK(candidate_blocks(cache, 99, 99) == range(1, 4));    // window from 79
  CHECK(candidate_blocks(cache, 20, 20).empty());
  CHECK(candidate_tokens(cache, 100, 100) == range(4, 80));
  const CacheLayout bare{16, 0, 0, false, 0};
  CHECK(candidate_tokens(bare, 5, 5) == range(0, 4));
  CHECK(candidate_blocks(bare, 33, 33) == range(0, 2));
  CHECK(candidate_blocks(bare, 32, 32) == range(0, 1));  // the block of the current token
  CHECK(candidate_tokens(bare, 0, 0).empty());
  const CacheLayout prompt{16, 0, 10, true, 0};
  CHECK(candidate_tokens(prompt, 150, 100) == range(0, 90));
  CHECK(candidate_tokens(prompt, 50, 100) == range(0, 40));
  const CacheLayout flush{16, 0, 10, true, 20};
  CHECK(candidate_tokens(flush, 119, 100) == range(0, 90));
  CHECK(candidate_tokens(flush, 145, 100) == range(0, 130));
}

TEST_CASE("a near-tie may swap, an exact tie may not, and nothing else") {
  Choice of{{3, 5, 8, 9}, {1.0, 0.5, 0.5, 0.5 - 1e-7}, 2, 0};
  CHECK(of.chosen() == Indices{3, 5});
  CHECK(judge(of, {3, 5}, 1e-5).admissible);
  CHECK_FALSE(judge(of, {3, 8}, 1e-5).admissible);  // 5 and 8 are equal: 5 it is
  const Verdict swapped = judge(of, {3, 9}, 1e-5);
  CHECK(swapped.admissible);
  CHECK(swapped.swapped == 1);
  CHECK(swapped.worst == Approx(1e-7));
  CHECK_FALSE(judge(of, {3, 9}, 1e-8).admissible);
  CHECK_FALSE(judge(of, {5, 8}, 1e-5).admissible);  // the best one is missing
  CHECK_FALSE(judge(of, {3, 4}, 1e-5).admissible);  // no candidate
  CHECK_FALSE(judge(of, {3}, 1e-5).admissible);
}

}  // namespace
