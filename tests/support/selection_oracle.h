// Which blocks a query must attend to under block selection by representatives: written from the
// published definitions alone, in double precision and plain loops, sharing no code with the
// runtime or the plugins. Slow on purpose: O(heads * tokens * head_dim).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir::test {

enum class OracleRepresentative {
  kMean,    // mean of the block's keys; score q.r
  kMax,     // elementwise maximum, not clamped; score q.r
  kMinMax,  // sum over d of max(q[d] * min[d], q[d] * max[d]) (Quest, arXiv:2406.10774)
  kFixed,   // the keys at tokens 0, B/n, 2B/n …; sum or largest of the n dot products
};
// How the scores of the query heads that share a list become one score per block.
enum class OracleReduce { kSum, kMean, kMax, kSoftmaxSum };
// Who shares a list: the query heads of a kv head; all query heads; nobody, and a kv head then
// attends to the union over its query heads.
enum class OracleHeads { kKvHead, kShared, kQueryHead };

struct SelectionCase {
  uint32_t n_q_heads = 1, n_kv_heads = 1, head_dim = 1;
  uint32_t block_size = 1;  // tokens
  uint32_t kv_len = 0;      // tokens in the cache, the current one included; the query is its query
  uint32_t sink_tokens = 0, window_tokens = 0;
  uint32_t prompt_end = 0;     // 0: the window is the last window_tokens; else it starts at
                               // prompt_end - window_tokens and grows
  uint32_t budget_tokens = 0;  // beside sink, window and open block; rounded down to blocks
  OracleRepresentative representative = OracleRepresentative::kMean;
  uint32_t n_fixed = 1;  // keys per block of kFixed
  bool fixed_max = false;
  OracleReduce reduce = OracleReduce::kSum;
  OracleHeads heads = OracleHeads::kKvHead;
  double softmax_scale = 1.0;  // of kSoftmaxSum: softmax over the candidates of scale * score
  std::vector<double> k;       // [n_kv_heads][kv_len][head_dim]
  std::vector<double> q;       // [n_q_heads][head_dim]
};

struct SelectionAnswer {
  // Candidates are ceil(sink / B) <= block < floor((kv_len - window) / B), and never the block of
  // the current token: the forced part is rounded outward to whole blocks.
  uint32_t candidate_begin = 0, candidate_end = 0;
  bool everything = false;  // the budget covers all candidates: nothing is scored
  // Per list (n_kv_heads, 1 or n_q_heads), per candidate in order; empty when everything.
  std::vector<std::vector<double>> scores;
  // Per kv head, ascending block indices.
  std::vector<std::vector<uint32_t>> selected;  // among the candidates; all of them if everything
  std::vector<std::vector<uint32_t>> attended;  // with sink, window and the open block
  // Smallest difference, over all lists, between the last block taken and the first left out,
  // divided by the list's largest |score|; infinite when nothing was left out. Where it is below
  // the precision of stored representatives a runtime may rightly choose another block.
  double margin = 0;
};

// Highest score first; equal scores: the lower block; NaN below everything.
SelectionAnswer select_blocks(const SelectionCase& of);

// The pieces, for tests of single steps. Score of one block for one query head, unscaled:
double block_score(const SelectionCase& of, uint32_t q_head, uint32_t block);
// Indices of the `n` best scores, ascending.
std::vector<uint32_t> best_scores(const std::vector<double>& scores, uint64_t n);
// One score per block from those of several query heads ([head][block]).
std::vector<double> reduce_scores(const std::vector<std::vector<double>>& heads, OracleReduce rule,
                                  double softmax_scale);
// Tokens of these blocks that exist: the last block may be partial.
std::vector<uint32_t> tokens_of(const SelectionCase& of, const std::vector<uint32_t>& blocks);

}  // namespace kvasir::test
