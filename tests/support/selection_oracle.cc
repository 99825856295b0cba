// See selection_oracle.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/selection_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

namespace kvasir::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double key(const SelectionCase& of, uint32_t kv_head, uint32_t token, uint32_t d) {
  return of.k[(size_t{kv_head} * of.kv_len + token) * of.head_dim + d];
}
double query(const SelectionCase& of, uint32_t q_head, uint32_t d) {
  return of.q[size_t{q_head} * of.head_dim + d];
}

double dot_with_token(const SelectionCase& of, uint32_t q_head, uint32_t kv_head, uint32_t token) {
  double dot = 0;
  for (uint32_t d = 0; d < of.head_dim; ++d)
    dot += query(of, q_head, d) * key(of, kv_head, token, d);
  return dot;
}

double fixed_score(const SelectionCase& of, uint32_t q_head, uint32_t kv_head, uint32_t begin) {
  double sum = 0, largest = -kInfinity;
  for (uint32_t i = 0; i < of.n_fixed; ++i) {
    const double dot =
        dot_with_token(of, q_head, kv_head, begin + i * (of.block_size / of.n_fixed));
    sum += dot;
    largest = std::max(largest, dot);
  }
  return of.fixed_max ? largest : sum;
}

bool better(double a, double b) {  // NaN is worse than any number
  if (std::isnan(a)) return false;
  return std::isnan(b) || a > b;
}

void find_candidates(const SelectionCase& of, SelectionAnswer& answer) {
  const uint32_t window_from = of.prompt_end != 0 ? of.prompt_end : of.kv_len;
  const uint32_t before_window =
      window_from > of.window_tokens ? window_from - of.window_tokens : 0;
  answer.candidate_begin = (of.sink_tokens + of.block_size - 1) / of.block_size;
  answer.candidate_end = std::min(before_window / of.block_size, (of.kv_len - 1) / of.block_size);
  if (answer.candidate_end < answer.candidate_begin) {
    // Sink and window meet: no candidate, wherever the boundary is drawn.
    answer.candidate_begin = answer.candidate_end;
  }
}

// Query heads that share a list, list by list.
std::vector<std::vector<uint32_t>> members_of_lists(const SelectionCase& of) {
  std::vector<std::vector<uint32_t>> lists;
  const uint32_t group = of.n_q_heads / of.n_kv_heads;
  for (uint32_t h = 0; h < of.n_q_heads; ++h) {
    const bool starts_list = of.heads == OracleHeads::kQueryHead ||
                             (of.heads == OracleHeads::kShared ? h == 0 : h % group == 0);
    if (starts_list) lists.emplace_back();
    lists.back().push_back(h);
  }
  return lists;
}

double margin_of(const std::vector<double>& scores, const std::vector<uint32_t>& taken) {
  double worst_taken = kInfinity, best_left = -kInfinity, largest = 0;
  for (uint32_t i = 0; i < scores.size(); ++i) {
    const bool is_taken = std::find(taken.begin(), taken.end(), i) != taken.end();
    if (is_taken) worst_taken = std::min(worst_taken, scores[i]);
    if (!is_taken) best_left = std::max(best_left, scores[i]);
    largest = std::max(largest, std::abs(scores[i]));
  }
  if (taken.empty() || taken.size() == scores.size()) return kInfinity;
  return largest > 0 ? (worst_taken - best_left) / largest : 0;
}

void check(const SelectionCase& of) {
  const bool sizes = of.n_kv_heads != 0 && of.n_q_heads % of.n_kv_heads == 0 &&
                     of.block_size != 0 && of.kv_len != 0 && of.n_fixed != 0 &&
                     of.n_fixed <= of.block_size &&
                     of.k.size() == size_t{of.n_kv_heads} * of.kv_len * of.head_dim &&
                     of.q.size() == size_t{of.n_q_heads} * of.head_dim;
  if (!sizes) throw std::invalid_argument("selection oracle: sizes do not fit each other");
}

}  // namespace

double block_score(const SelectionCase& of, uint32_t q_head, uint32_t block) {
  const uint32_t kv_head = q_head / (of.n_q_heads / of.n_kv_heads);
  const uint32_t begin = block * of.block_size;
  const uint32_t end = std::min(begin + of.block_size, of.kv_len);
  if (of.representative == OracleRepresentative::kFixed)
    return fixed_score(of, q_head, kv_head, begin);
  double score = 0;
  for (uint32_t d = 0; d < of.head_dim; ++d) {
    double sum = 0, low = kInfinity, high = -kInfinity;
    for (uint32_t t = begin; t < end; ++t) {
      sum += key(of, kv_head, t, d);
      low = std::min(low, key(of, kv_head, t, d));
      high = std::max(high, key(of, kv_head, t, d));
    }
    const double q = query(of, q_head, d);
    if (of.representative == OracleRepresentative::kMean) score += q * (sum / (end - begin));
    if (of.representative == OracleRepresentative::kMax) score += q * high;
    if (of.representative == OracleRepresentative::kMinMax) score += std::max(q * low, q * high);
  }
  return score;
}

std::vector<uint32_t> best_scores(const std::vector<double>& scores, uint64_t n) {
  std::set<uint32_t> taken;
  while (taken.size() < std::min<uint64_t>(n, scores.size())) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < scores.size(); ++i) {
      if (taken.count(i) != 0) continue;
      if (best == UINT32_MAX || better(scores[i], scores[best])) best = i;
    }
    taken.insert(best);
  }
  return {taken.begin(), taken.end()};
}

std::vector<double> reduce_scores(const std::vector<std::vector<double>>& heads, OracleReduce rule,
                                  double softmax_scale) {
  std::vector<double> out(heads.at(0).size(), rule == OracleReduce::kMax ? -kInfinity : 0.0);
  for (const auto& scores : heads) {
    double high = -kInfinity, denominator = 0;
    for (double score : scores) high = std::max(high, score);
    for (double score : scores) denominator += std::exp(softmax_scale * (score - high));
    for (size_t i = 0; i < scores.size(); ++i) {
      if (rule == OracleReduce::kMax) {
        out[i] = std::max(out[i], scores[i]);
      } else if (rule == OracleReduce::kSoftmaxSum) {
        out[i] += std::exp(softmax_scale * (scores[i] - high)) / denominator;
      } else {
        out[i] += scores[i] / (rule == OracleReduce::kMean ? double(heads.size()) : 1.0);
      }
    }
  }
  return out;
}

std::vector<uint32_t> tokens_of(const SelectionCase& of, const std::vector<uint32_t>& blocks) {
  std::vector<uint32_t> tokens;
  for (uint32_t block : blocks)
    for (uint32_t t = block * of.block_size; t < (block + 1) * of.block_size && t < of.kv_len; ++t)
      tokens.push_back(t);
  return tokens;
}

SelectionAnswer select_blocks(const SelectionCase& of) {
  check(of);
  SelectionAnswer answer;
  find_candidates(of, answer);
  const uint32_t n_candidates = answer.candidate_end - answer.candidate_begin;
  const uint32_t budget = of.budget_tokens / of.block_size;
  answer.everything = n_candidates <= budget;
  answer.margin = kInfinity;
  std::vector<std::set<uint32_t>> chosen(of.n_kv_heads);
  if (answer.everything) {
    for (auto& blocks : chosen)
      for (uint32_t b = answer.candidate_begin; b < answer.candidate_end; ++b) blocks.insert(b);
  } else {
    for (const auto& members : members_of_lists(of)) {
      std::vector<std::vector<double>> heads;
      for (uint32_t h : members) {
        heads.emplace_back();
        for (uint32_t i = 0; i < n_candidates; ++i)
          heads.back().push_back(block_score(of, h, answer.candidate_begin + i));
      }
      answer.scores.push_back(reduce_scores(heads, of.reduce, of.softmax_scale));
      const auto taken = best_scores(answer.scores.back(), budget);
      answer.margin = std::min(answer.margin, margin_of(answer.scores.back(), taken));
      for (uint32_t h : members)  // a shared list serves every kv head
        for (uint32_t i : taken)
          chosen[h / (of.n_q_heads / of.n_kv_heads)].insert(answer.candidate_begin + i);
    }
  }
  const uint32_t n_blocks = (of.kv_len + of.block_size - 1) / of.block_size;
  for (const auto& blocks : chosen) {
    answer.selected.emplace_back(blocks.begin(), blocks.end());
    std::set<uint32_t> all = blocks;
    for (uint32_t b = 0; b < n_blocks; ++b)
      if (b < answer.candidate_begin || b >= answer.candidate_end) all.insert(b);
    answer.attended.emplace_back(all.begin(), all.end());
  }
  return answer;
}

}  // namespace kvasir::test
