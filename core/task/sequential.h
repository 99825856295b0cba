// Statistics of a comparison that is watched while it runs, and may be stopped at any sample.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/task/clusters.h"

namespace kvasir {

// Confidence sequences: with probability 1 - level all of its intervals, at every number of
// contexts, hold the true mean. So a run may be stopped because of what they say.
//
// A context's result is a draw of one of few values: won - lost of its questions (with one
// question: lost, won or neither), or its right answers. For every mean d, the marginal likelihood
// of what was seen under a Dirichlet(1/2, …, 1/2) prior over the values, over the largest
// likelihood that any distribution with mean d gives it, is at most the same over the true
// likelihood, a martingale of mean 1: it passes 1 / level with probability at most `level` (Ville's
// inequality). The interval holds those d for which it has not. Robbins 1970, "Statistical methods
// related to the law of the iterated logarithm" (mixtures); Wasserman, Ramdas and Balakrishnan
// 2020, "Universal inference", arXiv:1912.11436 (the largest likelihood below the line).
//
// Depends on the counts alone, not on their order. 0 < level < 1.

// Of the difference of the shares of right answers.
Interval confidence_sequence(const ClusteredPairs& pairs, double level);
// Of the share of right answers.
Interval confidence_sequence(const ClusteredShare& share, double level);
// Whether the interval holds this difference, -1 … 1, or share.
bool sequence_holds(const ClusteredPairs& pairs, double level, double difference);
bool sequence_holds(const ClusteredShare& share, double level, double true_share);

// What the sequence says: equivalent within the margin, worse or better beyond chance, else that it
// cannot tell yet. `n_comparisons` sequences are watched together: each has level 5 % /
// n_comparisons (Bonferroni), so that one of them errs in at most 5 % of the runs. Samples that do
// not differ are no proof of equality: never kSame, never kNeverTell.
Verdict watched_verdict(const ClusteredPairs& pairs, size_t n_comparisons, double margin);

}  // namespace kvasir
