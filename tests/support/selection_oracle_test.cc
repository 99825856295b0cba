// The selection oracle against values worked out by hand.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/selection_oracle.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace {

using namespace kvasir::test;
using Blocks = std::vector<uint32_t>;

// Keys of one element, one kv head, so that a block's mean is easy to set.
SelectionCase line(uint32_t kv_len, uint32_t block_size) {
  SelectionCase of;
  of.kv_len = kv_len;
  of.block_size = block_size;
  of.k.assign(kv_len, 0.0);
  of.q = {1.0};
  return of;
}

TEST_CASE("the bound of Quest: the largest product per element, tight here") {
  SelectionCase of = line(2, 2);
  of.head_dim = 2;
  of.representative = OracleRepresentative::kMinMax;
  of.k = {1, -1, -2, 3};
  of.q = {0.5, -1};
  CHECK(block_score(of, 0, 0) == 1.5);
  of.q = {-1, -1};
  CHECK(block_score(of, 0, 0) == 3.0);  // above both true products, 0 and -1
}

TEST_CASE("representatives of one block: mean, maximum without clamp, fixed keys") {
  SelectionCase of = line(4, 4);
  of.k = {-1, -2, -3, -6};
  CHECK(block_score(of, 0, 0) == -3.0);
  of.representative = OracleRepresentative::kMax;
  CHECK(block_score(of, 0, 0) == -1.0);
  of.representative = OracleRepresentative::kFixed;
  CHECK(block_score(of, 0, 0) == -1.0);
  of.n_fixed = 2;  // tokens 0 and 2
  CHECK(block_score(of, 0, 0) == -4.0);
  of.fixed_max = true;
  CHECK(block_score(of, 0, 0) == -1.0);
  of = line(6, 4);
  of.k = {9, 9, 9, 9, 2, 4};
  CHECK(block_score(of, 0, 1) == 3.0);  // a partial block: over the tokens that exist
}

TEST_CASE("128K tokens, one sink block, 32 of window, 96 picked: 16513 tokens attended") {
  SelectionCase of = line(131073, 128);
  of.sink_tokens = 128;
  of.window_tokens = 4096;
  of.budget_tokens = 96 * 128;
  std::iota(of.k.begin(), of.k.end(), 0.0);
  const auto answer = select_blocks(of);
  CHECK(answer.candidate_begin == 1);
  CHECK(answer.candidate_end == 992);
  CHECK(answer.attended[0].size() == 1 + 96 + 32 + 1);
  CHECK(tokens_of(of, answer.attended[0]).size() == 16513);
  CHECK(answer.selected[0].front() == 992 - 96);  // keys grow with the position
  CHECK(answer.selected[0].back() == 991);
}

TEST_CASE("a context no longer than the budget is attended whole") {
  SelectionCase of = line(16512, 128);
  of.sink_tokens = 128;
  of.window_tokens = 4096;
  of.budget_tokens = 96 * 128;
  auto answer = select_blocks(of);
  CHECK(answer.everything);
  CHECK(answer.scores.empty());
  CHECK(tokens_of(of, answer.attended[0]).size() == 16512);
  of.kv_len = 16512 + 128;  // one block more, and something is left out
  of.k.resize(of.kv_len);
  answer = select_blocks(of);
  CHECK_FALSE(answer.everything);
  CHECK(tokens_of(of, answer.attended[0]).size() == 16512);
}

TEST_CASE("equal scores: the lower block; NaN loses to everything") {
  std::vector<double> scores(12, -1.0);
  scores[5] = scores[9] = 4.0;
  CHECK(best_scores(scores, 1) == Blocks{5});
  CHECK(best_scores(scores, 3) == Blocks{0, 5, 9});
  const double nan = std::nan(""), low = -std::numeric_limits<double>::infinity();
  CHECK(best_scores({nan, low, nan}, 1) == Blocks{1});
  CHECK(best_scores({nan, low, nan}, 2) == Blocks{0, 1});
  CHECK(best_scores({1, 2}, 9) == Blocks{0, 1});
}

TEST_CASE("a group of two heads over blocks a and b: each rule picks what it should") {
  const std::vector<std::vector<double>> heads = {{1, 0}, {0, 3}};
  CHECK(best_scores(reduce_scores(heads, OracleReduce::kSum, 1), 1) == Blocks{1});
  CHECK(best_scores(reduce_scores(heads, OracleReduce::kMax, 1), 1) == Blocks{1});
  const auto mean = reduce_scores(heads, OracleReduce::kMean, 1);
  CHECK(mean == std::vector<double>{0.5, 1.5});
  // Softmax over (1, 0) is (0.731, 0.269), over (0, 3) it is (0.0474, 0.9526).
  const auto softmax = reduce_scores(heads, OracleReduce::kSoftmaxSum, 1);
  CHECK(softmax[0] == doctest::Approx(0.7310586 + 0.0474259));
  CHECK(softmax[0] + softmax[1] == doctest::Approx(2.0));

  SelectionCase of;  // the same scores as keys: blocks of one token, then the current one
  of.n_q_heads = 2;
  of.head_dim = 2;
  of.kv_len = 3;
  of.budget_tokens = 1;
  of.k = {1, 0, 0, 3, 0, 0};
  of.q = {1, 0, 0, 1};
  CHECK(select_blocks(of).attended[0] == Blocks{1, 2});
  of.heads = OracleHeads::kQueryHead;
  CHECK(select_blocks(of).attended[0] == Blocks{0, 1, 2});  // the union costs both
}

TEST_CASE("shared: one list from all heads, the same for every kv head") {
  SelectionCase of;
  of.n_q_heads = of.n_kv_heads = 2;
  of.kv_len = 4;
  of.budget_tokens = 1;
  of.k = {5, 0, 0, 0, /* kv head 1 */ 0, 4, 3, 0};
  of.q = {1, 1};
  CHECK(select_blocks(of).selected == std::vector<Blocks>{{0}, {1}});
  of.heads = OracleHeads::kShared;
  CHECK(select_blocks(of).selected == std::vector<Blocks>{{0}, {0}});
  of.k[5] = 6;
  CHECK(select_blocks(of).selected == std::vector<Blocks>{{1}, {1}});
}

TEST_CASE("the forced part rounds outward; the block of the current token is never a candidate") {
  SelectionCase of = line(40, 8);
  of.sink_tokens = 9;
  of.window_tokens = 5;
  auto answer = select_blocks(of);
  CHECK(answer.candidate_begin == 2);
  CHECK(answer.candidate_end == 4);  // floor(35 / 8)
  of.window_tokens = 0;
  answer = select_blocks(of);
  CHECK(answer.candidate_end == 4);  // 40 / 8 would be 5, but token 39 lies in block 4
  CHECK(answer.attended[0] == Blocks{0, 1, 4});
  of.window_tokens = 100;
  answer = select_blocks(of);
  CHECK(answer.everything);
  CHECK(answer.attended[0] == Blocks{0, 1, 2, 3, 4});
}

TEST_CASE("a window that starts at the prompt's end grows while tokens are generated") {
  SelectionCase of = line(60, 4);
  of.window_tokens = 8;
  of.prompt_end = 40;
  CHECK(select_blocks(of).candidate_end == 8);
  of.prompt_end = 0;
  CHECK(select_blocks(of).candidate_end == 13);
}

TEST_CASE("the margin is the gap at the cut, and infinite when nothing was cut") {
  SelectionCase of = line(5, 1);
  of.k = {10, 4, 6, 0, 0};
  of.budget_tokens = 2;
  CHECK(select_blocks(of).margin == doctest::Approx(0.2));
  of.budget_tokens = 4;
  CHECK(std::isinf(select_blocks(of).margin));
}

TEST_CASE("sizes that do not fit are refused") {
  SelectionCase of = line(4, 2);
  of.q.clear();
  CHECK_THROWS(select_blocks(of));
}

}  // namespace
