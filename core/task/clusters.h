// Answers to several questions about each context. Questions of one context are not independent:
// each context is a cluster, and contexts are what is drawn. With one question about each, all here
// is what statistics.h and sequential.h say of pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/task/statistics.h"

namespace kvasir {

// Right answers of one strategy.
struct ClusteredShare {
  explicit ClusteredShare(uint32_t questions = 1) : n_questions(questions) {
    contexts.resize(questions + size_t{1});
  }
  void add(uint32_t right);  // of the questions about one more context

  uint32_t n_questions;            // about each context
  std::vector<uint64_t> contexts;  // [n_questions + 1]: by right answers, from 0 on
  uint64_t n = 0, n_right = 0;     // questions
};

// Two strategies on the same contexts, the second against the first.
struct ClusteredPairs {
  explicit ClusteredPairs(uint32_t questions = 1) : n_questions(questions) {
    contexts.resize(2 * questions + size_t{1});
  }
  void add(const PairedCounts& context);  // one more: its n_questions questions

  uint64_t n_contexts() const { return pairs.n / n_questions; }

  uint32_t n_questions;            // about each context
  std::vector<uint64_t> contexts;  // [2 n_questions + 1]: by won - lost, from -n_questions on
  PairedCounts pairs;              // questions
};
ClusteredPairs one_question_each(const PairedCounts& pairs);

// Of the share of right answers, 95 %: Wilson's interval of n / e answers, where the design effect
// e = variance between contexts / variance of independent answers, as estimated from both (Kish
// 1965; Korn and Graubard 1998, "Confidence intervals for proportions with small expected number
// of positive counts estimated from survey data").
Interval wilson_interval(const ClusteredShare& share);

// Of the difference of the shares of right answers, 95 %: Agresti and Min's interval of n / e
// pairs, with the design effect e of won - lost.
Interval difference_interval(const ClusteredPairs& pairs);

// Two-sided p when losing and winning are equally likely, in McNemar's place: the chance that the
// sum of won - lost over contexts is as far from 0 as it is, when each context's keeps its size
// and has either sign with chance 1/2, exactly. That holds whatever binds the questions of a
// context, if exchanging the strategies changes nothing (Fisher's randomisation test, 1935; of
// clustered matched pairs Yang, Sun and Hardin 2010). McNemar's p with one question each.
double sign_flip_p(const ClusteredPairs& pairs);

// The contexts with which sign_flip_p would see a difference like the observed one in four runs of
// five, were its p the least of n_comparisons under Holm: of runs drawn from the contexts seen,
// with a fixed seed. Above 1,000 contexts from the normal distribution. None when no difference was
// seen.
std::optional<uint64_t> contexts_to_tell(const ClusteredPairs& pairs, size_t n_comparisons);

// As judge() of pairs.
std::vector<Judgement> judge(std::span<const ClusteredPairs> comparisons, double margin);

}  // namespace kvasir
